package plan

import (
	"maps"
	"reflect"
	"testing"
	"unicode/utf8"
)

const (
	karpenter  = "karpenter.sh/do-not-disrupt"
	autoscaler = "cluster-autoscaler.kubernetes.io/safe-to-evict"
)

// put changes annotations as the API server does; nil removes one.
func put(annotations map[string]string, changes map[string]*string) {
	for key, value := range changes {
		if value == nil {
			delete(annotations, key)
		} else {
			annotations[key] = *value
		}
	}
}

func TestGuard(t *testing.T) {
	const (
		guarded = "resize.example.com/guarded"
		nothing = `{"cluster-autoscaler.kubernetes.io/safe-to-evict":null,"karpenter.sh/do-not-disrupt":null}`
		words   = `{"cluster-autoscaler.kubernetes.io/safe-to-evict":"true","karpenter.sh/do-not-disrupt":"5m"}`
	)
	type all = map[string]string
	for _, c := range []struct {
		name         string
		before       all
		on           bool
		after        all
		changesCount int
	}{
		{"nobody said anything", all{}, true, all{karpenter: "true", autoscaler: "false", guarded: nothing}, 3},
		{"its author said something else", all{karpenter: "5m", autoscaler: "true"}, true, all{karpenter: "true", autoscaler: "false", guarded: words}, 3},
		{
			"its author said the same", all{karpenter: "true", autoscaler: "false"}, true,
			all{karpenter: "true", autoscaler: "false", guarded: `{"cluster-autoscaler.kubernetes.io/safe-to-evict":"false","karpenter.sh/do-not-disrupt":"true"}`}, 1,
		},
		{"on already", all{karpenter: "true", autoscaler: "false", guarded: words}, true, all{karpenter: "true", autoscaler: "false", guarded: words}, 0},
		{
			"on already, and changed since", all{karpenter: "false", autoscaler: "false", guarded: words}, true,
			all{karpenter: "true", autoscaler: "false", guarded: `{"cluster-autoscaler.kubernetes.io/safe-to-evict":"true","karpenter.sh/do-not-disrupt":"false"}`}, 2,
		},
		{"garbage was kept", all{karpenter: "5m", autoscaler: "true", guarded: `{"karpenter.sh/do-not-disrupt":7}`}, true, all{karpenter: "true", autoscaler: "false", guarded: words}, 3},
		{"off already", all{karpenter: "true"}, false, all{karpenter: "true"}, 0},
		{"off, of nothing", all{karpenter: "true", autoscaler: "false", guarded: nothing}, false, all{}, 3},
		{"off, of what its author said", all{karpenter: "true", autoscaler: "false", guarded: words}, false, all{karpenter: "5m", autoscaler: "true"}, 3},
		{"off, after one was changed and one removed", all{karpenter: "10m", guarded: words}, false, all{karpenter: "10m"}, 1},
		{"off, of garbage", all{karpenter: "true", guarded: "x"}, false, all{karpenter: "true"}, 1},
		{"off, of no more than the guards", all{"other": "a", guarded: `{"other":"b"}`}, false, all{"other": "a"}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			changes := testKeys(t).Guard(c.before, c.on)
			after := maps.Clone(c.before)
			put(after, changes)
			if !maps.Equal(after, c.after) || len(changes) != c.changesCount || changes != nil && len(changes) == 0 {
				t.Errorf("by %d changes\n%v, want by %d\n%v", len(changes), after, c.changesCount, c.after)
			}
		})
	}
}

// Whatever stood there, the guards are on after the first pass, the second changes nothing, and off brings back what stood there,
// or what somebody has put there since.
func TestGuardsComeAndGo(t *testing.T) {
	keys := testKeys(t)
	absent := "absent"
	words := []string{absent, "", "true", "false", "5m"}
	set := func(annotations map[string]string, key, word string) {
		delete(annotations, key)
		if word != absent {
			annotations[key] = word
		}
	}
	for _, first := range words {
		for _, second := range words {
			author := annotations("enabled", "true")
			set(author, karpenter, first)
			set(author, autoscaler, second)
			on := maps.Clone(author)
			put(on, keys.Guard(on, true))
			if on[karpenter] != "true" || on[autoscaler] != "false" {
				t.Errorf("%v gives %v", author, on)
			}
			if again := keys.Guard(on, true); again != nil {
				t.Errorf("of %v the second pass changes %v", on, again)
			}
			off := maps.Clone(on)
			put(off, keys.Guard(off, false))
			if !maps.Equal(off, author) {
				t.Errorf("%v comes back as %v", author, off)
			}
			for _, since := range words {
				if since == "true" {
					continue // Which is the guard.
				}
				changed := maps.Clone(on)
				set(changed, karpenter, since)
				put(changed, keys.Guard(changed, false))
				want := maps.Clone(author)
				set(want, karpenter, since)
				if !maps.Equal(changed, want) {
					t.Errorf("%v was %q meanwhile, and comes back as %v", author, since, changed)
				}
			}
		}
	}
}

// Every record ends the guard, with the same write; nothing else does. Beside that it changes no decision.
func TestWhateverIsRecordedTakesTheGuardsAway(t *testing.T) {
	keys := testKeys(t)
	check := func(t *testing.T, in Input, decide func(Input) Decision) {
		t.Helper()
		want := decide(in)
		put(in.Pod.Annotations, map[string]*string{karpenter: new("5m")})
		author := maps.Clone(in.Pod.Annotations)
		put(in.Pod.Annotations, keys.Guard(in.Pod.Annotations, true))
		got := decide(in)
		unguard := got.Unguard
		got.Unguard = nil
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, without guards %+v", got, want)
		}
		put(in.Pod.Annotations, unguard)
		if off := maps.Equal(in.Pod.Annotations, author); off != (got.Action == Record) {
			t.Errorf("%s leaves %v", got.Action, in.Pod.Annotations)
		}
	}
	for _, c := range decideCases() {
		if keys.OptedIn(c.pod.Annotations) { // Else there is a record for the guards alone.
			t.Run(c.name, func(t *testing.T) { check(t, c.input(t), Decide) })
		}
	}
	t.Run("refused", func(t *testing.T) {
		check(t, Input{Keys: keys, Pod: testPod(started("app")), Now: noon}, func(in Input) Decision { return in.Refuse(Decision{}, "no") })
	})
}

// FuzzGuard: whatever was kept, and whoever wrote it, TestGuardsComeAndGo holds.
func FuzzGuard(f *testing.F) {
	keys := testKeys(f)
	f.Fuzz(func(t *testing.T, guarded, first, second string, has uint8) {
		if !utf8.ValidString(guarded) || !utf8.ValidString(first) || !utf8.ValidString(second) {
			t.Skip() // The API server lets no such annotation in.
		}
		before := annotations("enabled", "true")
		for i, pair := range [][2]string{{keys.Guarded, guarded}, {karpenter, first}, {autoscaler, second}} {
			if has>>i&1 == 1 {
				before[pair[0]] = pair[1]
			}
		}
		on, off := maps.Clone(before), maps.Clone(before)
		put(on, keys.Guard(on, true))
		put(off, keys.Guard(off, false))
		if on[karpenter] != "true" || on[autoscaler] != "false" || keys.Guard(on, true) != nil {
			t.Errorf("on, %v become %v, and then %v change", before, on, keys.Guard(on, true))
		}
		if _, kept := off[keys.Guarded]; kept || keys.Guard(off, false) != nil {
			t.Errorf("off, %v become %v, and then %v change", before, off, keys.Guard(off, false))
		}
		put(on, keys.Guard(on, false))
		if !maps.Equal(on, off) {
			t.Errorf("%v become %v by going on and off, and %v by going off", before, on, off)
		}
		for _, key := range []string{keys.Guarded, karpenter, autoscaler} {
			delete(off, key)
		}
		if len(off) != 1 || off[keys.Enabled] != "true" {
			t.Errorf("%v become %v", before, off)
		}
	})
}
