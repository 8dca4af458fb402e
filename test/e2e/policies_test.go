package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"

	"pod-resizer/resizer/plan"
	"pod-resizer/test/deploy"
)

// teamLabel is what opt-in.yaml selects pods by.
const teamLabel = "example.com/team"

// TestPolicies: manifests/policies do the webhook's work where it is not called, the opt-in goes with either, and nothing else is
// touched.
func TestPolicies(t *testing.T) {
	t.Parallel()
	l := shared
	l.needsPolicies(t)
	byPolicies, byWebhook, byBoth := l.namespace(t), l.namespace(t), l.namespace(t)
	l.keepWebhookFrom(t, byPolicies)
	// In kube-system they would act, if they did not leave it out themselves.
	policies := l.policies(t, byPolicies, byBoth, metav1.NamespaceSystem)
	policies.apply(t, "x")
	eventually(t, "policies at work, and the webhook not", func(ctx context.Context) (bool, string) {
		for _, pod := range []*corev1.Pod{l.teamPod(nil), l.samplePod(nil)} { // Each has a binding of its own, and they do not come together.
			pod := l.dryRun(ctx, t, byPolicies, pod)
			if !l.keys.OptedIn(pod.Annotations) || pod.Labels[l.keys.Managed] != "true" || pod.Annotations[l.keys.Resolved] != "" {
				return false, mustJSON(t, pod)
			}
		}
		return true, ""
	})

	t.Run("in parallel", func(t *testing.T) { // Ends when its parallel tests have.
		t.Run("a pod from its creation to its steady CPU", func(t *testing.T) {
			t.Parallel()
			pod := l.samplePod(nil)
			memory := corev1.ContainerResizePolicy{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer}
			pod.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{memory}
			always := corev1.ContainerRestartPolicyAlways
			sidecar := helper("proxy", "-burn", "10ms", "-listen", ":8081")
			sidecar.RestartPolicy = &always
			pod.Spec.InitContainers = []corev1.Container{helper("migrate", "-help"), sidecar}
			pod, err := l.client.CoreV1().Pods(byPolicies).Create(t.Context(), pod, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if got := pod.Spec.Containers[0].ResizePolicy; !slices.Equal(got, []corev1.ContainerResizePolicy{memory, cpuNotRequired()}) {
				t.Errorf("resize policy %v", got)
			}
			l.checkLowered(t, pod, map[string]plan.MilliCPU{"migrate": 100, "proxy": 100})
		})
		t.Run("a Deployment's pod, opted in by its label", func(t *testing.T) {
			t.Parallel()
			slow := map[string]string{l.keys.DelaySeconds: "2"} // So that its startup CPU is seen.
			if err := l.owners()["Deployment"](t.Context(), byPolicies, l.teamPod(slow)); err != nil {
				t.Fatal(err)
			}
			var pods *corev1.PodList
			eventually(t, "the pod", func(ctx context.Context) (bool, string) {
				var err error
				pods, err = l.client.CoreV1().Pods(byPolicies).List(ctx, metav1.ListOptions{LabelSelector: teamLabel + "=x"})
				return err == nil && len(pods.Items) == 1, fmt.Sprint(err)
			})
			l.checkLowered(t, &pods.Items[0], nil)
		})
	})

	t.Run("the same as the webhook", func(t *testing.T) {
		files, err := filepath.Glob(filepath.Join(deploy.Root(), "webhook", "testdata", "*.pod.yaml"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%d pods: %v", len(files), err)
		}
		for _, file := range files {
			t.Run(strings.TrimSuffix(filepath.Base(file), ".pod.yaml"), func(t *testing.T) {
				text, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				pod := &corev1.Pod{}
				if err := yaml.UnmarshalStrict(text, pod); err != nil {
					t.Fatal(err)
				}
				pod.Namespace = ""
				l.comparePolicy(t, pod, byPolicies, byWebhook)
			})
		}
	})

	t.Run("opted in for the webhook", func(t *testing.T) {
		stale := map[string]string{l.keys.Resolved: `{"app":{"startupMilliCPU":9,"steadyMilliCPU":9}}`}
		pod, want := l.dryRun(t.Context(), t, byBoth, l.teamPod(stale)), plan.Resolved{"app": {Startup: startupCPU, Steady: steadyCPU}}
		if pod.Status.QOSClass != corev1.PodQOSGuaranteed || pod.Annotations[l.keys.Resolved] != want.String() ||
			!slices.Equal(pod.Spec.Containers[0].ResizePolicy, []corev1.ContainerResizePolicy{cpuNotRequired()}) {
			t.Errorf("created as %s", mustJSON(t, pod))
		}
	})

	t.Run("the author's word goes first", func(t *testing.T) {
		for name, annotations := range map[string]map[string]string{
			"opted out":        {l.keys.Enabled: "false"},
			"not a boolean":    {l.keys.Enabled: "yes"},
			"other steady CPU": {l.keys.SteadyResources: `{"app":{"limits":{"cpu":"60m"}}}`, l.keys.Trigger: string(plan.Ready)},
		} {
			wanted := l.teamPod(annotations)
			pod := l.dryRun(t.Context(), t, byPolicies, wanted)
			if annotations[l.keys.Enabled] == "" {
				annotations[l.keys.Enabled] = "true"
			} else if !sameResources(pod, wanted) || pod.Spec.Containers[0].ResizePolicy != nil || !maps.Equal(pod.Labels, wanted.Labels) {
				t.Errorf("%s: touched: %s", name, mustJSON(t, pod))
			}
			if !maps.Equal(pod.Annotations, annotations) {
				t.Errorf("%s: annotations %v, not %v", name, pod.Annotations, annotations)
			}
		}
	})

	t.Run("not in the cluster's own namespaces", func(t *testing.T) {
		for _, wanted := range []*corev1.Pod{l.teamPod(nil), l.samplePod(nil)} {
			pod := l.dryRun(t.Context(), t, metav1.NamespaceSystem, wanted)
			if !sameResources(pod, wanted) || !maps.Equal(pod.Annotations, wanted.Annotations) || !maps.Equal(pod.Labels, wanted.Labels) {
				t.Errorf("touched: %s", mustJSON(t, pod))
			}
		}
	})

	// The API server calls policies in the order of a Go map, perhaps another one after each change.
	t.Run("in any order", func(t *testing.T) {
		for i := range 5 {
			pod := l.teamPod(nil)
			pod.Labels[teamLabel] = fmt.Sprint("team-", i)
			policies.apply(t, pod.Labels[teamLabel])
			eventually(t, "a pod of "+pod.Labels[teamLabel], func(ctx context.Context) (bool, string) {
				pod := l.dryRun(ctx, t, byPolicies, pod)
				return l.keys.OptedIn(pod.Annotations) && pod.Status.QOSClass == corev1.PodQOSGuaranteed, mustJSON(t, pod)
			})
		}
	})

	t.Run("removed", func(t *testing.T) {
		policies.remove(t.Context(), t)
		eventually(t, "pods as their authors wrote them", func(ctx context.Context) (bool, string) {
			for _, wanted := range []*corev1.Pod{l.teamPod(nil), l.samplePod(nil)} {
				if pod := l.dryRun(ctx, t, byPolicies, wanted); !sameResources(pod, wanted) || !maps.Equal(pod.Annotations, wanted.Annotations) ||
					!maps.Equal(pod.Labels, wanted.Labels) {
					return false, mustJSON(t, pod)
				}
			}
			return true, ""
		})
	})
}

// TestWithoutWebhook: no webhook configuration in the whole cluster, which the README says how to come to. New replicas run, and
// resize.
func TestWithoutWebhook(t *testing.T) {
	l := shared
	l.needsRealNode(t, "the certificate of a process beside the cluster comes from files")
	t.Cleanup(func() {
		if err := deploy.Apply(context.Background(), l.cluster, deploy.Manifest()); err != nil {
			t.Fatal(err)
		}
		if err := deploy.AwaitProduct(context.Background(), l.cluster); err != nil {
			t.Error(err)
		}
	})
	api := l.client.AdmissionregistrationV1()
	if err := errors.Join(api.MutatingWebhookConfigurations().Delete(t.Context(), deploy.Name, metav1.DeleteOptions{}),
		api.ValidatingWebhookConfigurations().Delete(t.Context(), deploy.Name, metav1.DeleteOptions{})); err != nil {
		t.Fatal(err)
	}
	if _, err := l.client.AppsV1().Deployments(deploy.Namespace).Patch(t.Context(), deploy.Name, types.JSONPatchType,
		[]byte(`[{"op":"add","path":"/spec/template/spec/containers/0/args/-","value":"--webhook=false"}]`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := deploy.AwaitProduct(t.Context(), l.cluster); err != nil {
		t.Fatal(err)
	}
	pod := l.samplePod(nil)
	pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = *startupCPU.Quantity()
	l.awaitCondition(t, l.create(t, pod), plan.CPULowered, "CPU lowered; Guaranteed")
}

// comparePolicy creates a pod where policies act, and where the webhook acts. They differ in this alone:
//
//   - A pod whose annotations are wrong, the webhook leaves as its author wrote it. CEL cannot tell. (It can tell pod-level
//     resources and Windows.)
//   - In a pod that cannot be Guaranteed, the webhook makes those containers equal that an annotation names, and the policy none.
//   - The policy gives each container a resize policy, and the webhook those that an annotation names.
//   - The policy writes no annotation "resolved", nor reads one.
//   - What only a webhook can act on, the policy does not: a startup CPU other than the container's own, the boost, a runtime, and
//     guards. Those that a manifest carries along stay until the resizer takes them away.
func (l lab) comparePolicy(t *testing.T, pod *corev1.Pod, byPolicies, byWebhook string) {
	t.Helper()
	optedOut := pod.DeepCopy()
	delete(optedOut.Annotations, l.keys.Enabled)
	written, writtenErr := l.tryRun(t.Context(), t, byPolicies, optedOut)
	got, policyErr := l.tryRun(t.Context(), t, byPolicies, pod)
	forWebhook, notActedOn := pod.DeepCopy(), map[string]string{}
	for _, key := range []string{l.keys.StartupCPU, l.keys.StartupResources, l.keys.Boost, l.keys.PinRuntime, l.keys.ProtectStartup, l.keys.Guarded} {
		if value, present := pod.Annotations[key]; present {
			notActedOn[key] = value
			delete(forWebhook.Annotations, key)
		}
	}
	delete(forWebhook.Annotations, l.keys.Resolved)
	want, webhookErr := l.tryRun(t.Context(), t, byWebhook, forWebhook)
	if writtenErr != nil && policyErr != nil && webhookErr != nil {
		return
	}
	if writtenErr != nil || policyErr != nil || webhookErr != nil {
		t.Fatalf("opted out: %v; by policy: %v; by webhook: %v", writtenErr, policyErr, webhookErr)
	}
	if !maps.Equal(written.Annotations, optedOut.Annotations) || !maps.Equal(written.Labels, optedOut.Labels) {
		t.Errorf("not opted in, and touched: %s", mustJSON(t, written))
	}
	switch {
	case !l.keys.OptedIn(pod.Annotations):
		want.Spec = written.Spec
	case want.Labels[l.keys.Managed] != "true": // What the webhook says of wrong annotations, the resizer says later.
		metav1.SetMetaDataLabel(&want.ObjectMeta, l.keys.Managed, "true")
		want.Spec = written.Spec
		if got.Status.QOSClass == corev1.PodQOSGuaranteed && pod.Spec.Resources == nil && pod.Spec.OS == nil {
			want.Spec = got.Spec
		}
	case want.Status.QOSClass != corev1.PodQOSGuaranteed:
		want.Spec = written.Spec
	default:
		for _, containers := range [][]corev1.Container{want.Spec.InitContainers, want.Spec.Containers} {
			for i := range containers {
				c := &containers[i]
				if !slices.ContainsFunc(c.ResizePolicy, func(p corev1.ContainerResizePolicy) bool { return p.ResourceName == corev1.ResourceCPU }) {
					c.ResizePolicy = append(c.ResizePolicy, cpuNotRequired())
				}
			}
		}
	}
	delete(want.Annotations, l.keys.Resolved)
	maps.Copy(want.Annotations, notActedOn)
	if !maps.Equal(got.Labels, want.Labels) || !maps.Equal(got.Annotations, want.Annotations) {
		t.Errorf("labels %v, not %v; annotations %v, not %v", got.Labels, want.Labels, got.Annotations, want.Annotations)
	}
	type part struct {
		Resources    corev1.ResourceRequirements
		ResizePolicy []corev1.ContainerResizePolicy
	}
	parts := func(pod *corev1.Pod) string {
		var all []part
		for _, c := range plan.Containers(&pod.Spec) {
			all = append(all, part{c.Resources, c.ResizePolicy})
		}
		return mustJSON(t, all)
	}
	if parts(got) != parts(want) {
		t.Errorf("by policy:\n%s\nnot:\n%s", parts(got), parts(want))
	}
}

// checkLowered follows a pod that the policy has seen from its startup CPU to its steady CPU. The others are containers that are
// not lowered.
func (l lab) checkLowered(t *testing.T, pod *corev1.Pod, others map[string]plan.MilliCPU) {
	t.Helper()
	cpu := func(pod *corev1.Pod) map[string]plan.MilliCPU {
		all := map[string]plan.MilliCPU{}
		for _, c := range plan.Containers(&pod.Spec) {
			request, limit := c.Resources.Requests.Cpu(), c.Resources.Limits.Cpu()
			if !request.Equal(*limit) || !c.Resources.Requests.Memory().Equal(*c.Resources.Limits.Memory()) {
				t.Errorf("%s has %s", c.Name, mustJSON(t, c.Resources))
			}
			all[c.Name] = plan.MilliCPU(limit.MilliValue())
		}
		return all
	}
	startup, steady := map[string]plan.MilliCPU{"app": startupCPU}, map[string]plan.MilliCPU{"app": steadyCPU}
	maps.Copy(startup, others)
	maps.Copy(steady, others)
	if got := cpu(pod); !maps.Equal(got, startup) || pod.Generation != 1 || pod.Status.QOSClass != corev1.PodQOSGuaranteed {
		t.Fatalf("created as %s", mustJSON(t, pod))
	}
	pod = l.awaitCondition(t, pod, plan.CPULowered, "CPU lowered; Guaranteed")
	if got := cpu(pod); !maps.Equal(got, steady) || pod.Status.QOSClass != corev1.PodQOSGuaranteed ||
		pod.Annotations[l.keys.Resized] != "true" || pod.Labels[l.keys.Managed] != "true" || l.keys.StatusOf(pod).Reason != plan.CPULowered {
		t.Errorf("lowered to %s", mustJSON(t, pod))
	}
	l.checkQuotas(t, pod, steady)
	time.Sleep(time.Second) // For a write too many to show: a retry loop begins at a tenth of a second.
	if writes, want := l.writes(t, pod.Namespace, pod.Name), []string{"patch pods/resize 200", "patch pods/status 200"}; !slices.Equal(writes, want) {
		t.Errorf("the product wrote %q, not %q", writes, want)
	}
}

// teamPod is one that opt-in.yaml selects.
func (l lab) teamPod(annotations map[string]string) *corev1.Pod {
	pod := l.samplePod(nil)
	pod.Annotations = annotations
	pod.Labels[teamLabel] = "x"
	return pod
}

// helper is a container beside app.
func helper(name string, args ...string) corev1.Container {
	return corev1.Container{
		Name: name, Image: deploy.SampleImage, ImagePullPolicy: corev1.PullIfNotPresent, Args: args,
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("20m")},
			Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("32Mi")},
		},
	}
}

func cpuNotRequired() corev1.ContainerResizePolicy {
	return corev1.ContainerResizePolicy{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.NotRequired}
}

// tryRun is how the API server would create a pod.
func (l lab) tryRun(ctx context.Context, t *testing.T, namespace string, pod *corev1.Pod) (*corev1.Pod, error) {
	t.Helper()
	client, _ := l.withWarnings(t) // Of which there are many here.
	pod = pod.DeepCopy()
	pod.Name, pod.GenerateName = "", "dry-run-"
	return client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
}

func (l lab) dryRun(ctx context.Context, t *testing.T, namespace string, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	created, err := l.tryRun(ctx, t, namespace, pod)
	if err != nil {
		t.Fatal(err)
	}
	return created
}

// needsPolicies skips a test on a version of Kubernetes that has no MutatingAdmissionPolicy, or not by default.
func (l lab) needsPolicies(t *testing.T) {
	t.Helper()
	resources, err := l.client.Discovery().ServerResourcesForGroupVersion("admissionregistration.k8s.io/v1")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(resources.APIResources, func(r metav1.APIResource) bool { return r.Name == "mutatingadmissionpolicies" }) {
		t.Skip("needs Kubernetes 1.36 or later")
	}
}

// keepWebhookFrom keeps pod-resizer's webhook from being called in a namespace.
func (l lab) keepWebhookFrom(t *testing.T, namespace string) {
	t.Helper()
	patch := `[{"op":"add","path":"/webhooks/0/namespaceSelector/matchExpressions/-",
		"value":{"key":"kubernetes.io/metadata.name","operator":"NotIn","values":["` + namespace + `"]}}]`
	// It stays: the namespace goes, and the manifest, when it is applied anew, replaces the list.
	if _, err := l.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Patch(t.Context(), deploy.Name, types.JSONPatchType,
		[]byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// policies are what stands in manifests/policies, under other names and for a test's own namespaces, because the cluster is
// shared. Errors, which the manifests have the API server ignore, fail the pod here.
type policies struct {
	lab  lab
	text string
}

func (l lab) policies(t *testing.T, namespaces ...string) policies {
	t.Helper()
	p := policies{lab: l}
	for _, name := range []string{"opt-in.yaml", "guaranteed.yaml"} {
		text, err := os.ReadFile(filepath.Join(deploy.Root(), "manifests", "policies", name))
		if err != nil {
			t.Fatal(err)
		}
		p.text += string(text) + "---\n"
	}
	p.replace(t, "pod-resizer-", namespaces[0]+"-")
	p.replace(t, "failurePolicy: Ignore", "failurePolicy: Fail")
	p.replace(t, "    namespaceSelector:\n      matchExpressions:\n", fmt.Sprintf(
		"$0        - {key: kubernetes.io/metadata.name, operator: In, values: [%s]}\n", strings.Join(namespaces, ", ")))
	t.Cleanup(func() { p.remove(context.Background(), t) })
	return p
}

// replace changes the manifests' text, $0 being what was there.
func (p *policies) replace(t *testing.T, old, new string) {
	t.Helper()
	if !strings.Contains(p.text, old) {
		t.Fatalf("manifests/policies have no %q", old)
	}
	p.text = strings.ReplaceAll(p.text, old, strings.ReplaceAll(new, "$0", old))
}

// apply applies them, for the pods of one team to be opted in.
func (p policies) apply(t *testing.T, team string) {
	t.Helper()
	p.replace(t, teamLabel+": x", teamLabel+": "+team)
	if err := deploy.Apply(t.Context(), p.lab.cluster, p.write(t)); err != nil {
		t.Fatal(err)
	}
}

func (p policies) remove(ctx context.Context, t *testing.T) {
	t.Helper()
	if err := deploy.Remove(ctx, p.lab.cluster, p.write(t)); err != nil {
		t.Error(err)
	}
}

func (p policies) write(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policies.yaml")
	if err := os.WriteFile(path, []byte(p.text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
