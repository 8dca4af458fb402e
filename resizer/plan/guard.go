package plan

import "encoding/json"

// guards are the annotations that keep a pod from being evicted, with the value that does: by Karpenter and by the Cluster
// Autoscaler.
func guards() map[string]string {
	return map[string]string{
		"karpenter.sh/do-not-disrupt":                    "true",
		"cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
	}
}

// Guard is what has to change in a pod's annotations (nil removes one) for the guards to be on, or off: then, what their author
// wrote stands there again. Keys.Guarded keeps it, so that a guard which is on already is not taken for the author's. A guard
// whose value is another by now is somebody's word of today, and goes before what was kept.
func (k Keys) Guard(annotations map[string]string, on bool) map[string]*string {
	if _, guarded := annotations[k.Guarded]; !guarded && !on {
		return nil
	}
	var kept map[string]*string
	if json.Unmarshal([]byte(annotations[k.Guarded]), &kept) != nil {
		kept = nil // None, or not ours.
	}
	authors, after := map[string]*string{}, map[string]*string{k.Guarded: nil}
	for key, guard := range guards() {
		if value, present := annotations[key]; present {
			authors[key] = &value
		} else {
			authors[key] = nil
		}
		if original, ok := kept[key]; ok && annotations[key] == guard {
			authors[key] = original
		}
		after[key] = authors[key]
		if on {
			after[key] = &guard
		}
	}
	if on {
		text := mustJSON(authors)
		after[k.Guarded] = &text
	}
	for key, want := range after {
		if value, present := annotations[key]; present == (want != nil) && (!present || value == *want) {
			delete(after, key)
		}
	}
	if len(after) == 0 {
		return nil
	}
	return after
}
