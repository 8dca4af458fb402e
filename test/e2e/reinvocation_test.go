package e2e

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"pod-resizer/resizer/plan"
	"pod-resizer/test/cluster"
	"pod-resizer/test/deploy"
)

// operation is one of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// injection is what another webhook does to a pod.
type injection func(*corev1.Pod) []operation

// last has a container injected behind the pod's own, first before them, and native as a native sidecar.
func last(c corev1.Container) injection { return container("/spec/containers/-", c) }

func first(c corev1.Container) injection { return container("/spec/containers/0", c) }

func native(c corev1.Container) injection {
	always := corev1.ContainerRestartPolicyAlways
	c.RestartPolicy = &always
	return func(pod *corev1.Pod) []operation {
		if len(pod.Spec.InitContainers) == 0 {
			return []operation{{"add", "/spec/initContainers", []corev1.Container{c}}}
		}
		return container("/spec/initContainers/0", c)(pod)
	}
}

// container adds one that is not there yet: an injector is called a second time, too.
func container(path string, c corev1.Container) injection {
	return func(pod *corev1.Pod) []operation {
		if slices.ContainsFunc(plan.Containers(&pod.Spec), func(there *corev1.Container) bool { return there.Name == c.Name }) {
			return nil
		}
		return []operation{{"add", path, c}}
	}
}

// annotation adds one.
func annotation(key, value string) injection {
	return func(*corev1.Pod) []operation {
		return []operation{{"add", "/metadata/annotations/" + strings.ReplaceAll(key, "/", "~1"), value}}
	}
}

func each(all ...injection) injection {
	return func(pod *corev1.Pod) []operation {
		var operations []operation
		for _, one := range all {
			operations = append(operations, one(pod)...)
		}
		return operations
	}
}

// equal is a container whose requests are its limits: helper's 100m and 32Mi.
func equal(name string) corev1.Container {
	c := helper(name)
	c.Resources.Requests = c.Resources.Limits
	return c
}

// injector registers two mutating webhooks for a namespace, both served by this process: one that the API server calls before
// pod-resizer's, and one that it calls after it, because it calls them in the order of their configurations' names. What they do
// to a pod, its name says.
func (l lab) injector(t *testing.T, namespace string, before, after map[string]injection) {
	t.Helper()
	if l.cluster.Node() != cluster.Simulated {
		t.Skip("the API server of a real node has a network of its own, and does not reach this process")
	}
	serve := func(injections map[string]injection) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			var review admissionv1.AdmissionReview
			var pod corev1.Pod
			err := json.NewDecoder(r.Body).Decode(&review)
			if err == nil {
				err = json.Unmarshal(review.Request.Object.Raw, &pod)
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest) // Which fails the test: see FailurePolicy.
				return
			}
			review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
			if inject := injections[pod.Name]; inject != nil {
				if patch, err := json.Marshal(inject(&pod)); err == nil && string(patch) != "null" {
					kind := admissionv1.PatchTypeJSONPatch
					review.Response.Patch, review.Response.PatchType = patch, &kind
				}
			}
			review.Request = nil
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(review) // It fails when the API server is gone.
		}
	}
	for injections, name := range map[*map[string]injection]string{&before: "before", &after: "after"} {
		all := map[string]injection{"": last(equal(name))} // What has no name asks whether the webhooks are at work.
		maps.Copy(all, *injections)
		*injections = all
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/before", serve(before))
	mux.HandleFunc("/after", serve(after))
	server := httptest.NewTLSServer(mux) // Its certificate, for 127.0.0.1, is its own CA.
	t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	fail, ifNeeded, none := admissionregistrationv1.Fail, admissionregistrationv1.IfNeededReinvocationPolicy, admissionregistrationv1.SideEffectClassNone
	api := l.client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	for path, prefix := range map[string]string{"/before": "aa-", "/after": "zz-"} {
		url := server.URL + path
		created, err := api.Create(t.Context(), &admissionregistrationv1.MutatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: prefix + namespace},
			Webhooks: []admissionregistrationv1.MutatingWebhook{{
				Name:         prefix + "injector.example.com",
				ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: ca},
				Rules: []admissionregistrationv1.RuleWithOperations{{
					Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
					Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
				}},
				NamespaceSelector:  &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}},
				FailurePolicy:      &fail,
				ReinvocationPolicy: &ifNeeded,
				SideEffects:        &none, AdmissionReviewVersions: []string{"v1"},
			}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := api.Delete(context.Background(), created.Name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "both injectors at work", func(ctx context.Context) (bool, string) {
		names := namesOf(l.dryRun(ctx, t, namespace, l.samplePod(nil)))
		return slices.Equal(names, []string{"app", "before", "after"}), fmt.Sprint(names)
	})
}

func namesOf(pod *corev1.Pod) []string {
	var names []string
	for _, c := range plan.Containers(&pod.Spec) {
		names = append(names, c.Name)
	}
	return names
}

// admission is what the API server's audit log says of a pod's creation.
type admission struct {
	mutated map[int]bool // By round: whether pod-resizer changed the pod; empty if it was not called.
	outcome string       // As pod-resizer called it, in the first round.
	ignored bool         // Whether it failed, and the pod was let in all the same.
}

const podsWebhook = "pods.resize.example.com"

func (l lab) admission(t *testing.T, namespace, pod string) admission {
	t.Helper()
	var found *admission
	eventually(t, "the creation in the audit log", func(context.Context) (bool, string) {
		for _, w := range l.allWrites(t) {
			if ref := w.ObjectRef; w.Verb != "create" || ref.Resource != "pods" || ref.Subresource != "" || ref.Namespace != namespace || ref.Name != pod {
				continue
			}
			found = &admission{mutated: map[int]bool{}, outcome: w.Annotations[podsWebhook+"/outcome"]}
			for key, value := range w.Annotations {
				var mutation struct {
					Webhook string `json:"webhook"`
					Mutated bool   `json:"mutated"`
				}
				var round, index int
				switch _, err := fmt.Sscanf(key, "mutation.webhook.admission.k8s.io/round_%d_index_%d", &round, &index); {
				case err == nil && json.Unmarshal([]byte(value), &mutation) == nil && mutation.Webhook == podsWebhook:
					found.mutated[round] = mutation.Mutated
				case strings.HasPrefix(key, "failed-open.mutation.webhook.admission.k8s.io/") && value == podsWebhook:
					found.ignored = true
				}
			}
			return true, ""
		}
		return false, ""
	})
	return *found
}

// TestReinvocation: another webhook injects a sidecar after pod-resizer has seen the pod, so that the API server calls pod-resizer
// again, with its own work in the pod. Reported to VPA as #7641: the sidecar made the pod Burstable, or the change was made
// twice.
func TestReinvocation(t *testing.T) {
	t.Parallel()
	const defaultContainer = "kubectl.kubernetes.io/default-container"
	l := shared
	app := plan.CPU{Startup: startupCPU, Steady: steadyCPU}
	other := plan.CPU{Startup: 100, Steady: 100}
	bare := helper("proxy")
	bare.Resources = corev1.ResourceRequirements{}
	ready := equal("proxy")
	ready.ReadinessProbe = l.samplePod(nil).Spec.Containers[0].ReadinessProbe
	short := func(steady string, more map[string]string) map[string]string { // Instead of samplePod's steady-resources.
		all := map[string]string{l.keys.SteadyCPU: steady, l.keys.SteadyResources: ""}
		maps.Copy(all, more)
		return all
	}
	cases := []struct {
		name          string
		annotations   map[string]string
		edit          func(*corev1.Pod)
		before, after injection
		cpu           plan.Resolved // The CPU at startup is request and limit of each.
		env           []corev1.EnvVar
		late          bool     // Whether the first call cannot do anything yet.
		again         bool     // Whether the second call changes anything.
		burstable     []string // What is said of the reasons.
		warns         []string // What else is said.
		says          string   // By the condition, when the CPU is lowered.
	}{
		{
			name:  "a sidecar whose requests are its limits",
			after: last(equal("proxy")), again: true,
			cpu:  plan.Resolved{"app": app, "proxy": other},
			says: "CPU lowered, app 200m to 50m; Guaranteed",
		},
		{
			name:  "a native sidecar whose requests are its limits",
			after: native(equal("proxy")), again: true,
			cpu:  plan.Resolved{"app": app, "proxy": other},
			says: "CPU lowered, app 200m to 50m; Guaranteed",
		},
		{
			name:  "a sidecar whose requests are below its limits",
			after: last(helper("proxy")), again: true,
			cpu:  plan.Resolved{"app": app, "proxy": other},
			says: "CPU lowered, app 200m to 50m; Guaranteed",
		},
		{
			name:  "a native sidecar whose requests are below its limits",
			after: native(helper("proxy")), again: true,
			cpu:  plan.Resolved{"app": app, "proxy": other},
			says: "CPU lowered, app 200m to 50m; Guaranteed",
		},
		{
			name:  "a sidecar without resources is named as the culprit",
			after: last(bare),
			cpu:   plan.Resolved{"app": app},
			burstable: []string{
				`resources.limits.cpu: container "proxy": is not set, so the pod will not be Guaranteed; `,
				`resources.limits.memory: container "proxy": is not set, so the pod will not be Guaranteed; `,
			},
			says: "CPU lowered, app 200m to 50m; Burstable",
		},
		{
			name:   "a sidecar before, and another one after",
			before: last(helper("agent")), after: native(helper("proxy")), again: true,
			cpu:  plan.Resolved{"app": app, "agent": other, "proxy": other},
			says: "CPU lowered, app 200m to 50m; Guaranteed",
		},
		{
			name:   "a sidecar before, and nothing after",
			before: native(helper("proxy")),
			cpu:    plan.Resolved{"app": app, "proxy": other},
			says:   "CPU lowered, app 200m to 50m; Guaranteed",
		},
		{
			name:        "a sidecar before, which the author's annotation names",
			annotations: short("app=50m,proxy=10m", nil),
			before:      last(ready),
			cpu:         plan.Resolved{"app": app, "proxy": {Startup: 100, Steady: 10}},
			says:        "CPU lowered, app 200m to 50m, proxy 100m to 10m; Guaranteed",
		},
		{
			name:        "a sidecar after, which the author's annotation names",
			annotations: short("app=50m,proxy=10m", nil),
			after:       last(ready), late: true, again: true,
			cpu: plan.Resolved{"app": app, "proxy": {Startup: 100, Steady: 10}},
			// Of the first call, when it was not there. The API server takes no warning back.
			warns: []string{l.keys.SteadyCPU + `: container "proxy": the pod has no such container; name one of app`},
			says:  "CPU lowered, app 200m to 50m, proxy 100m to 10m; Guaranteed",
		},
		{
			name:        "a factor is taken once",
			annotations: short("50m", map[string]string{l.keys.StartupCPU: "3x"}),
			after:       last(helper("proxy")), again: true,
			cpu:  plan.Resolved{"app": {Startup: 150, Steady: 50}, "proxy": other},
			says: "CPU lowered, app 150m to 50m; Guaranteed",
		},
		{
			name:        "a percentage is taken once",
			annotations: short("25%", nil),
			after:       native(helper("proxy")), again: true,
			cpu:  plan.Resolved{"app": app, "proxy": other},
			says: "CPU lowered, app 200m to 50m; Guaranteed",
		},
		{
			name:        "a percentage is of the limit that another webhook sets",
			annotations: short("25%", nil),
			after: func(*corev1.Pod) []operation {
				return []operation{{"add", "/spec/containers/0/resources/limits/cpu", "400m"}}
			}, again: true,
			cpu:  plan.Resolved{"app": {Startup: 400, Steady: 100}},
			says: "CPU lowered, app 400m to 100m; Guaranteed",
		},
		{
			name:        "a percentage of a startup CPU that it is not created with",
			annotations: short("25%", map[string]string{l.keys.Boost: string(plan.Opportunistic)}),
			after:       last(helper("proxy")), again: true,
			cpu:  plan.Resolved{"app": app, "proxy": other},
			says: "CPU lowered, app 200m to 50m; Guaranteed",
		},
		{
			name:        "a runtime is pinned once, and the author's own resize policy kept",
			annotations: map[string]string{l.keys.PinRuntime: "jvm"},
			edit: func(pod *corev1.Pod) {
				pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "JAVA_TOOL_OPTIONS", Value: "-Xmx16m"}}
				pod.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer}}
			},
			after: last(helper("proxy")), again: true,
			cpu:  plan.Resolved{"app": app, "proxy": other},
			env:  []corev1.EnvVar{{Name: "JAVA_TOOL_OPTIONS", Value: "-Xmx16m -XX:ActiveProcessorCount=1"}},
			says: "CPU lowered, app 200m to 50m; Guaranteed",
		},
		{
			name:        "a sidecar that goes first, and says which container was",
			annotations: short("50m", nil),
			after:       each(first(ready), annotation(defaultContainer, "app")), again: true,
			cpu:  plan.Resolved{"proxy": other, "app": app},
			says: "CPU lowered, app 200m to 50m; Guaranteed",
		},
	}
	namespace := l.namespace(t)
	before, after := map[string]injection{}, map[string]injection{}
	named := func(i int) string { return fmt.Sprintf("case-%d", i) }
	for i, c := range cases {
		before[named(i)], after[named(i)] = c.before, c.after
	}
	l.injector(t, namespace, before, after)
	t.Run("injected", func(t *testing.T) { // Ends when its parallel cases have.
		for i, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				client, warned := l.withWarnings(t)
				pod := l.samplePod(c.annotations)
				pod.Name = named(i)
				if pod.Annotations[l.keys.SteadyResources] == "" {
					delete(pod.Annotations, l.keys.SteadyResources)
				}
				var policies []corev1.ContainerResizePolicy
				if c.edit != nil {
					c.edit(pod)
					policies = pod.Spec.Containers[0].ResizePolicy
				}
				created, err := client.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
				if err != nil {
					t.Fatal(err)
				}
				class := corev1.PodQOSGuaranteed
				if len(c.burstable) > 0 {
					class = corev1.PodQOSBurstable
				}
				if created.Status.QOSClass != class || created.Annotations[l.keys.Resolved] != c.cpu.String() || created.Labels[l.keys.Managed] != "true" {
					t.Errorf("created %s, with labels %v and annotations %v", created.Status.QOSClass, created.Labels, created.Annotations)
				}
				for _, container := range plan.Containers(&created.Spec) {
					cpu, r := c.cpu[container.Name], container.Resources
					amount := cpu.Startup
					if c.annotations[l.keys.Boost] == string(plan.Opportunistic) {
						amount = cpu.Steady
					}
					if got := plan.MilliCPU(r.Limits.Cpu().MilliValue()); got != amount || !r.Requests.Cpu().Equal(*r.Limits.Cpu()) || !r.Requests.Memory().Equal(*r.Limits.Memory()) {
						t.Errorf("%s is created with %s", container.Name, mustJSON(t, r))
					}
					var want []corev1.ContainerResizePolicy
					var env []corev1.EnvVar
					if container.Name == "app" {
						want, env = policies, c.env
					}
					if cpu.Steady < cpu.Startup {
						want = append(slices.Clip(want), cpuNotRequired())
					}
					if !slices.Equal(container.ResizePolicy, want) || !slices.Equal(container.Env, env) {
						t.Errorf("%s is created with resize policy %v and environment %v", container.Name, container.ResizePolicy, container.Env)
					}
				}
				checkWarnings(t, warned.all, append(c.warns, c.burstable...))
				if a, rounds := l.admission(t, namespace, pod.Name), map[int]bool{0: !c.late, 1: c.again}; !maps.Equal(a.mutated, rounds) {
					t.Errorf("pod-resizer changed the pod in rounds %v, not %v", a.mutated, rounds)
				}
				l.awaitCondition(t, created, plan.CPULowered, c.says)
			})
		}
	})
}

// checkWarnings wants just those that begin so, in this order.
func checkWarnings(t *testing.T, got, want []string) {
	t.Helper()
	if !slices.EqualFunc(got, want, strings.HasPrefix) {
		t.Errorf("warnings %q, not %q", got, want)
	}
}

// TestMarkedByVPA: the VerticalPodAutoscaler's webhook, whose name comes after ours, sets a pod's CPU and marks it as its own. From
// then on the pod is left to it, and its author is told. (What the first call has made equal stays so: nothing says any more what
// the author wrote.)
func TestMarkedByVPA(t *testing.T) {
	t.Parallel()
	l := shared
	namespace := l.namespace(t)
	pod := l.samplePod(nil)
	l.injector(t, namespace, nil, map[string]injection{pod.Name: each(annotation("vpaUpdates", "Pod resources updated by sample"),
		func(*corev1.Pod) []operation {
			return []operation{{"add", "/spec/containers/0/resources/requests/cpu", "60m"}, {"add", "/spec/containers/0/resources/limits/cpu", "70m"}}
		})})
	client, warned := l.withWarnings(t)
	created, err := client.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	says := "vpaUpdates: a VerticalPodAutoscaler sets this pod's CPU"
	checkWarnings(t, warned.all, []string{says})
	if request, limit := cpuOf(created); request != 60 || limit != 70 || created.Annotations[l.keys.Resolved] != "" {
		t.Errorf("created with request %s, limit %s, annotations %v", request, limit, created.Annotations)
	}
	l.awaitCondition(t, created, plan.InvalidAnnotation, says)
}

// TestDenyWaitsForTheSidecar: with --on-invalid=deny, a container that an annotation names and that is injected after pod-resizer's
// first look is no reason to refuse the pod, as it is none to refuse the workload: README, "a container from whatever injects
// sidecars".
func TestDenyWaitsForTheSidecar(t *testing.T) {
	l := shared
	namespace := l.namespace(t)
	pod := l.samplePod(map[string]string{l.keys.SteadyResources: `{"app":{"limits":{"cpu":"50m"}},"proxy":{"limits":{"cpu":"10m"}}}`})
	l.injector(t, namespace, nil, map[string]injection{pod.Name: last(equal("proxy"))})
	if err := deploy.Process(t.Context(), l.cluster, "--on-invalid=deny"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := deploy.Process(context.Background(), l.cluster); err != nil {
			t.Error(err)
		}
	})
	created, err := l.client.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if created.Status.QOSClass != corev1.PodQOSGuaranteed {
		t.Errorf("created as %s", mustJSON(t, created))
	}
}

// TestASidecarThatGoesFirst: a value without a container's name is meant for the container that was first when its author wrote it,
// and when pod-resizer saw the pod first; not for a sidecar that is put before it in between.
func TestASidecarThatGoesFirst(t *testing.T) {
	t.Parallel()
	l := shared
	namespace := l.namespace(t)
	pod := l.samplePod(map[string]string{l.keys.SteadyCPU: "50m"})
	delete(pod.Annotations, l.keys.SteadyResources)
	l.injector(t, namespace, nil, map[string]injection{pod.Name: first(equal("proxy"))})
	created, err := l.client.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := plan.Resolved{"app": {Startup: startupCPU, Steady: steadyCPU}, "proxy": {Startup: 100, Steady: 100}}.String()
	if got := created.Annotations[l.keys.Resolved]; got != want {
		t.Errorf("resolved is %s, not %s", got, want)
	}
}
