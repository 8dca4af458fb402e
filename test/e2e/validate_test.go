package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"pod-resizer/test/cluster"
	"pod-resizer/test/deploy"
)

// workload is a kind that people write.
type workload struct {
	resource schema.GroupVersionResource
	kind     string
	spec     map[string]any // Beside the template.
	template []string       // Where it stands.
	scale    bool           // Whether it has that subresource.
	fixed    bool           // Whether its template cannot be changed.
}

func workloads() []workload {
	template := []string{"spec", "template"}
	selector := map[string]any{"matchLabels": map[string]any{"app": "sample"}}
	apps, batch := schema.GroupVersion{Group: "apps", Version: "v1"}, schema.GroupVersion{Group: "batch", Version: "v1"}
	return []workload{
		{apps.WithResource("deployments"), "Deployment", map[string]any{"selector": selector}, template, true, false},
		{apps.WithResource("statefulsets"), "StatefulSet", map[string]any{"selector": selector}, template, true, false},
		{apps.WithResource("daemonsets"), "DaemonSet", map[string]any{"selector": selector}, template, false, false},
		{apps.WithResource("replicasets"), "ReplicaSet", map[string]any{"selector": selector}, template, true, false},
		{batch.WithResource("jobs"), "Job", map[string]any{}, template, false, true},
		{
			batch.WithResource("cronjobs"), "CronJob", map[string]any{"schedule": "0 0 1 1 *"},
			[]string{"spec", "jobTemplate", "spec", "template"}, false, false,
		},
		{
			rollouts(), "Rollout",
			map[string]any{"selector": selector, "strategy": map[string]any{"canary": map[string]any{}}}, template, false, false,
		},
	}
}

func rollouts() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "rollouts"}
}

// of makes a workload of a pod, which nothing has to run.
func (w workload) of(t *testing.T, pod *corev1.Pod) *unstructured.Unstructured {
	t.Helper()
	pod.Spec.SchedulerName = "nobody"
	if w.resource.Group == "batch" {
		pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	}
	template, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels, Annotations: pod.Annotations}, Spec: pod.Spec,
	})
	if err != nil {
		t.Fatal(err)
	}
	object := &unstructured.Unstructured{Object: map[string]any{"spec": runtime.DeepCopyJSON(w.spec)}}
	object.SetGroupVersionKind(w.resource.GroupVersion().WithKind(w.kind))
	object.SetName("sample")
	if err := unstructured.SetNestedMap(object.Object, template, w.template...); err != nil {
		t.Fatal(err)
	}
	return object
}

// says is what a warning about an annotation has to begin with.
func (w workload) says(key string) string {
	return strings.Join(w.template, ".") + ".metadata.annotations[" + key + "]: "
}

// author is somebody who writes workloads of one kind and reads warnings.
type author struct {
	dynamic.ResourceInterface
	warned *warnings
}

func (l lab) author(t *testing.T, w workload, namespace string) author {
	t.Helper()
	warned := &warnings{}
	config := rest.CopyConfig(l.config)
	config.WarningHandler = warned
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return author{client.Resource(w.resource).Namespace(namespace), warned}
}

// hears checks the warnings since the last time: none, or one that begins so.
func (a author) hears(t *testing.T, what, want string) {
	t.Helper()
	got := a.warned.all
	a.warned.all = nil
	if want == "" && len(got) > 0 || want != "" && (len(got) != 1 || !strings.HasPrefix(got[0], want)) {
		t.Errorf("%s: warnings %q, wanted %q", what, got, want)
	}
}

func (a author) patch(t *testing.T, patch string, subresources ...string) {
	t.Helper()
	if _, err := a.Patch(t.Context(), "sample", types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...); err != nil {
		t.Fatalf("%s: %v", patch, err)
	}
}

// annotate is a patch of the template's annotations.
func (w workload) annotate(key, value string) string {
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, key, value)
	for _, field := range slices.Backward(w.template) {
		patch = fmt.Sprintf(`{%q:%s}`, field, patch)
	}
	return patch
}

// TestValidate: whoever writes a workload hears at once what is wrong with its pods, and nobody hears it again for a change of
// something else.
func TestValidate(t *testing.T) {
	l := shared
	// Before there is a CRD, the rule for Rollouts is one for nothing.
	t.Run("without Argo Rollouts", func(t *testing.T) { l.validate(t, workloads()[0]) })
	l.rolloutsCRD(t)
	for _, w := range workloads() {
		t.Run(w.kind, func(t *testing.T) { l.validate(t, w) })
	}
}

const failedReviews = `pod_resizer_admission_reviews_total{outcome="error",webhook="validate"}`

func (l lab) validate(t *testing.T, w workload) {
	namespace := l.namespace(t)
	a := l.author(t, w, namespace)
	failed := l.metric(t, failedReviews)
	bad := map[string]string{l.keys.Trigger: "Started"}
	says := w.says(l.keys.Trigger) + `"Started": is not a trigger; write one of `

	if _, err := a.Create(t.Context(), w.of(t, l.samplePod(bad)), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Fatalf("denied: %v", err)
	}
	a.hears(t, "a dry run", says)
	created, err := a.Create(t.Context(), w.of(t, l.samplePod(bad)), metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("denied: %v", err)
	}
	a.hears(t, "its creation", says)
	a.patch(t, `{"metadata":{"labels":{"a":"b"}}}`)
	a.hears(t, "a label", "")
	a.patch(t, `{"metadata":{"annotations":{"deployment.kubernetes.io/revision":"7"}}}`)
	a.hears(t, "an annotation of its own", "")
	if w.scale {
		a.patch(t, `{"spec":{"replicas":2}}`)
		a.hears(t, "replicas", "")
		a.patch(t, `{"spec":{"replicas":3}}`, "scale")
		a.hears(t, "scale", "")
	}
	if w.resource != rollouts() { // Its CRD may be one without.
		a.patch(t, `{"status":{}}`, "status")
		a.hears(t, "status", "")
	}
	reviews := []string{"create 201 invalid trigger", "create 201 invalid trigger"}
	if !w.fixed {
		a.patch(t, w.annotate("example.com/version", "2"))
		a.hears(t, "another template, as bad", says)
		a.patch(t, w.annotate(l.keys.Trigger, "Ready"))
		a.hears(t, "the template put right", "")
		reviews = append(reviews, "patch 200 invalid trigger", "patch 200 valid ")
	}

	controlled := w.of(t, l.samplePod(bad))
	yes := true
	controlled.SetName("controlled")
	controlled.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion: created.GetAPIVersion(), Kind: created.GetKind(), Name: created.GetName(), UID: created.GetUID(), Controller: &yes,
	}})
	if _, err := a.Create(t.Context(), controlled, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Fatal(err)
	}
	a.hears(t, "one that a controller makes", "")

	right := w.of(t, l.samplePod(nil))
	right.SetName("right")
	if _, err := a.Create(t.Context(), right, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	a.hears(t, "one that is right", "")
	misplaced := w.of(t, l.samplePod(map[string]string{l.keys.Enabled: "false"}))
	misplaced.SetName("misplaced")
	misplaced.SetAnnotations(map[string]string{l.keys.Enabled: "true"})
	if _, err := a.Create(t.Context(), misplaced, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	a.hears(t, "the annotation in the wrong place", l.keys.Enabled+": stands in metadata.annotations, which pods do not get")

	// Nothing else was sent to the webhook, by a controller or by the author.
	l.awaitReviews(t, namespace, append(reviews, "create 201 valid ", "create 201 ignored "))
	if now := l.metric(t, failedReviews); now != failed {
		t.Errorf("%v failed reviews", now-failed)
	}
}

// awaitReviews waits until the audit log has these requests that were sent to the webhook for workloads, and no other: verb,
// answer, and the webhook's audit annotations. (Metrics count more: the API server tries a patch anew that meets another write.)
func (l lab) awaitReviews(t *testing.T, namespace string, want []string) {
	t.Helper()
	const webhook = "workloads.resize.example.com/"
	eventually(t, strings.Join(want, ", "), func(context.Context) (bool, string) {
		var seen []string
		for _, w := range l.allWrites(t) {
			if outcome, sent := w.Annotations[webhook+"outcome"]; sent && w.ObjectRef.Namespace == namespace {
				seen = append(seen, fmt.Sprintf("%s %d %s %s", w.Verb, w.ResponseStatus.Code, outcome, w.Annotations[webhook+"reason"]))
			}
		}
		return slices.Equal(seen, want), strings.Join(seen, ", ")
	})
}

// rolloutsCRD has the API server take Rollouts, whatever they look like, unless it does already.
func (l lab) rolloutsCRD(t *testing.T) {
	t.Helper()
	client, err := dynamic.NewForConfig(l.config)
	if err != nil {
		t.Fatal(err)
	}
	crds := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	crd := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": rollouts().GroupResource().String()},
		"spec": map[string]any{
			"group": rollouts().Group, "scope": "Namespaced",
			"names": map[string]any{"kind": "Rollout", "plural": "rollouts", "singular": "rollout"},
			"versions": []any{map[string]any{
				"name": rollouts().Version, "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
			}},
		},
	}}
	if _, err := crds.Create(t.Context(), crd, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
		return
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := crds.Delete(context.Background(), crd.GetName(), metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		// Another test brings Argo's own, which must not meet this one.
		if err := wait.PollUntilContextTimeout(context.Background(), 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
			_, err := crds.Get(ctx, crd.GetName(), metav1.GetOptions{})
			return apierrors.IsNotFound(err), nil
		}); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "Rollouts are served", func(ctx context.Context) (bool, string) {
		_, err := client.Resource(rollouts()).List(ctx, metav1.ListOptions{})
		return err == nil, fmt.Sprint(err)
	})
}

// TestValidateDenies: with --on-invalid=deny, what is certainly wrong is refused, and nothing else.
func TestValidateDenies(t *testing.T) {
	l := shared
	if l.cluster.Node() != cluster.Simulated {
		t.Skip("a process beside the cluster is given another flag in no time; that flag does the same in a pod")
	}
	namespace := l.namespace(t)
	w := workloads()[0]
	a := l.author(t, w, namespace)
	create := func(name string, annotations map[string]string, dryRun ...string) error {
		object := w.of(t, l.samplePod(annotations))
		object.SetName(name)
		_, err := a.Create(t.Context(), object, metav1.CreateOptions{DryRun: dryRun})
		return err
	}
	bad := map[string]string{l.keys.SteadyResources: `{"app":{"limits":{"cpu":"5.0.0m"}}}`}
	if err := create("sample", bad); err != nil {
		t.Fatal(err)
	}
	a.hears(t, "before", w.says(l.keys.SteadyResources))

	if err := deploy.Process(t.Context(), l.cluster, "--on-invalid=deny"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := deploy.Process(context.Background(), l.cluster); err != nil {
			t.Error(err)
		}
	})
	denied := func(what, says string, err error) {
		t.Helper()
		if !apierrors.IsBadRequest(err) || !containsAll(err.Error(), []string{"denied the request: " + says, `"5.0.0m"`, "write an amount such as"}) {
			t.Errorf("%s: %v", what, err)
		}
		a.hears(t, what, "")
	}
	denied("a dry run", w.says(l.keys.SteadyResources), create("other", bad, metav1.DryRunAll))
	denied("a creation", w.says(l.keys.SteadyResources), create("other", bad))
	_, err := a.Patch(t.Context(), "sample", types.MergePatchType, []byte(w.annotate("example.com/version", "2")), metav1.PatchOptions{})
	denied("another template, as bad", w.says(l.keys.SteadyResources), err)
	_, err = l.client.CoreV1().Pods(namespace).Create(t.Context(), l.samplePod(bad), metav1.CreateOptions{})
	denied("a pod", l.keys.SteadyResources+": ", err)

	a.patch(t, `{"spec":{"replicas":2}}`)
	a.patch(t, `{"spec":{"replicas":3}}`, "scale")
	a.hears(t, "an old one, scaled", "")
	a.patch(t, w.annotate(l.keys.SteadyResources, `{"app":{"limits":{"cpu":"50m"}}}`))
	a.hears(t, "an old one, put right", "")
	for _, c := range []struct {
		name        string
		annotations map[string]string
		says        string
	}{
		{"right", nil, ""},
		{"not-opted-in", map[string]string{l.keys.Enabled: "yes"}, w.says(l.keys.Enabled)},
		// Whatever injects sidecars may add it.
		{"unsure", map[string]string{l.keys.SteadyResources: `{"mesh":{"limits":{"cpu":"50m"}}}`}, w.says(l.keys.SteadyResources) + `container "mesh": `},
	} {
		if err := create(c.name, c.annotations); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		a.hears(t, c.name, c.says)
	}
	l.awaitReviews(t, namespace, []string{
		"create 201 invalid steady-resources",
		"create 400 denied steady-resources", "create 400 denied steady-resources", "patch 400 denied steady-resources",
		"patch 200 valid ", "create 201 valid ", "create 201 ignored ", "create 201 unsure ",
	})
}
