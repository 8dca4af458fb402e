package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"

	"pod-resizer/resizer/plan"
	"pod-resizer/test/cluster"
	"pod-resizer/test/deploy"
)

// try is a dry run under a name of its own, by which the audit log knows it, and with warnings.
func (l lab) try(t *testing.T, namespace string, pod *corev1.Pod) (*corev1.Pod, []string, error) {
	t.Helper()
	client, warned := l.withWarnings(t)
	created, err := client.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return created, warned.all, err
}

// asWritten says whether admission left a pod alone: what it would have changed is as its author wrote it.
func asWritten(got, wrote *corev1.Pod) bool {
	return sameResources(got, wrote) && reflect.DeepEqual(got.Annotations, wrote.Annotations) && reflect.DeepEqual(got.Labels, wrote.Labels) &&
		reflect.DeepEqual(got.Spec.Containers[0].ResizePolicy, wrote.Spec.Containers[0].ResizePolicy)
}

// TestDryRun: `kubectl apply --dry-run=server` shows what would become of a pod, and nothing is stored. The API server refuses a
// dry run whose webhook does not say sideEffects None.
func TestDryRun(t *testing.T) {
	t.Parallel()
	l := shared
	namespace := l.namespace(t)
	pod, warned, err := l.try(t, namespace, l.samplePod(nil))
	if err != nil {
		t.Fatal(err)
	}
	checkWarnings(t, warned, nil)
	if request, limit := cpuOf(pod); request != startupCPU || limit != startupCPU || pod.Status.QOSClass != corev1.PodQOSGuaranteed ||
		pod.Annotations[l.keys.Resolved] != (plan.Resolved{"app": {Startup: startupCPU, Steady: steadyCPU}}).String() {
		t.Errorf("would be created as %s", mustJSON(t, pod))
	}
	if a := l.admission(t, namespace, pod.Name); !a.mutated[0] || a.outcome != "mutated" {
		t.Errorf("the audit log has %+v", a)
	}
	if _, err := l.client.CoreV1().Pods(namespace).Get(t.Context(), pod.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("it was stored: %v", err)
	}
}

// manyFields is a pod with much that pod-resizer has no business with, the newest fields included. A version of Kubernetes that does
// not know one of them drops it, opted in or not.
const manyFields = `
apiVersion: v1
kind: Pod
metadata:
  name: many-fields
  labels: {app: sample}
  annotations: {example.com/note: "a/b~c", resize.example.com/steady-cpu: app=50m, resize.example.com/trigger: Ready}
  finalizers: [example.com/finalizer]
spec:
  os: {name: linux}
  hostnameOverride: elsewhere
  hostname: here
  subdomain: there
  automountServiceAccountToken: false
  shareProcessNamespace: true
  enableServiceLinks: false
  priorityClassName: system-node-critical
  schedulerName: nobody
  schedulingGates: [{name: example.com/gate}]
  readinessGates: [{conditionType: example.com/Ready}]
  activeDeadlineSeconds: 3600
  hostAliases: [{ip: 192.0.2.1, hostnames: [a.example.com]}]
  dnsPolicy: None
  dnsConfig: {nameservers: [192.0.2.2], options: [{name: ndots, value: "2"}]}
  securityContext: {runAsUser: 1000, supplementalGroupsPolicy: Strict, seccompProfile: {type: RuntimeDefault}, sysctls: [{name: net.ipv4.tcp_syncookies, value: "1"}]}
  tolerations: [{key: a, operator: Exists, effect: NoExecute, tolerationSeconds: 7}]
  affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, podAffinityTerm: {topologyKey: a, matchLabelKeys: [app], labelSelector: {matchLabels: {a: b}}}}]}}
  topologySpreadConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: ScheduleAnyway, nodeTaintsPolicy: Honor, labelSelector: {matchLabels: {a: b}}}]
  resourceClaims: [{name: gpu, resourceClaimName: gpu}]
  volumes:
  - {name: data, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
  - {name: image, image: {reference: example.com/data:1, pullPolicy: IfNotPresent}}
  - {name: env, emptyDir: {}}
  - {name: all, projected: {sources: [{downwardAPI: {items: [{path: cpu, resourceFieldRef: {containerName: app, resource: limits.cpu, divisor: 1m}}]}}]}}
  initContainers:
  - name: migrate
    image: example.com/migrate:1
    resources: {requests: {cpu: 10m}, limits: {cpu: 20m, memory: 16Mi}}
  - name: proxy
    image: example.com/proxy:1
    restartPolicy: Always
    resources: {limits: {cpu: 20m, memory: 16Mi}}
  containers:
  - name: app
    image: example.com/app:1
    restartPolicy: Never
    restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [42]}}]
    lifecycle: {stopSignal: SIGUSR1, preStop: {sleep: {seconds: 1}}}
    env:
    - {name: A, value: "1"}
    - {name: CPU, valueFrom: {resourceFieldRef: {resource: requests.cpu, divisor: 1m}}}
    - {name: F, valueFrom: {fileKeyRef: {volumeName: env, path: a.env, key: F, optional: true}}}
    resizePolicy: [{resourceName: memory, restartPolicy: NotRequired}]
    resources:
      requests: {cpu: 50m, memory: 64Mi, example.com/gpu: 1}
      limits: {cpu: 200m, memory: 64Mi, example.com/gpu: 1}
      claims: [{name: gpu, request: one}]
    volumeMounts: [{name: data, mountPath: /data, recursiveReadOnly: Disabled}, {name: image, mountPath: /image, subPath: a, readOnly: true}]
    readinessProbe: {grpc: {port: 9090, service: a}, periodSeconds: 2}
    startupProbe: {exec: {command: [a]}, terminationGracePeriodSeconds: 2}
    securityContext: {capabilities: {drop: [ALL]}, procMount: Default, appArmorProfile: {type: Unconfined}}
  - name: agent
    image: example.com/agent:1
    resources: {requests: {cpu: 10m}, limits: {cpu: 20m, memory: 16Mi, hugepages-2Mi: 4Mi}}
`

// TestAllElseStays: one pod, opted in and not, differs in what the README says, and in nothing else. Other tools have clobbered GPUs,
// hugepages and init containers with a patch of the whole list of containers.
func TestAllElseStays(t *testing.T) {
	t.Parallel()
	l := shared
	client, err := dynamic.NewForConfig(l.config)
	if err != nil {
		t.Fatal(err)
	}
	pods := client.Resource(corev1.SchemeGroupVersion.WithResource("pods")).Namespace(l.namespace(t))
	create := func(enabled string) *unstructured.Unstructured {
		t.Helper()
		object := map[string]any{}
		if err := yaml.Unmarshal([]byte(manyFields), &object); err != nil {
			t.Fatal(err)
		}
		pod := &unstructured.Unstructured{Object: object}
		pod.SetAnnotations(with(pod.GetAnnotations(), l.keys.Enabled, enabled))
		created, err := pods.Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			t.Fatal(err)
		}
		return created
	}
	optedIn, optedOut := create("true"), create("false")
	var pod corev1.Pod
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(optedIn.Object, &pod); err != nil {
		t.Fatal(err)
	}
	memory := corev1.ContainerResizePolicy{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.NotRequired}
	if pod.Status.QOSClass != corev1.PodQOSGuaranteed || !slices.Equal(pod.Spec.Containers[0].ResizePolicy, []corev1.ContainerResizePolicy{memory, cpuNotRequired()}) {
		t.Errorf("opted in, it is created as %s", mustJSON(t, pod))
	}
	for _, created := range []*unstructured.Unstructured{optedIn, optedOut} {
		for _, path := range [][]string{{"metadata", "uid"}, {"metadata", "creationTimestamp"}, {"metadata", "managedFields"}, {"status", "qosClass"}} {
			unstructured.RemoveNestedField(created.Object, path...) // Of each creation another, or what this is all about.
		}
		annotations, labels := created.GetAnnotations(), created.GetLabels()
		delete(annotations, l.keys.Enabled)
		delete(annotations, l.keys.Resolved)
		delete(labels, l.keys.Managed)
		created.SetAnnotations(annotations)
		created.SetLabels(labels)
		for _, field := range []string{"initContainers", "containers"} {
			containers, _, _ := unstructured.NestedSlice(created.Object, "spec", field)
			for _, c := range containers {
				c := c.(map[string]any)
				delete(c, "resizePolicy")
				unstructured.RemoveNestedField(c, "resources", "requests", "cpu")
			}
			if err := unstructured.SetNestedSlice(created.Object, containers, "spec", field); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got, want := mustJSON(t, optedIn), mustJSON(t, optedOut); got != want {
		t.Errorf("opted in:\n%s\nnot:\n%s", got, want)
	}
}

func with(m map[string]string, key, value string) map[string]string {
	m[key] = value
	return m
}

// review posts a pod straight to the webhook, which only the API server does otherwise, and returns the paths of its patch.
func (l lab) review(t *testing.T, pod string) []string {
	t.Helper()
	asked := admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: "1", Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: []byte(pod)},
			Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
		},
	}
	answer := l.post(t, []byte(mustJSON(t, asked)))
	var review admissionv1.AdmissionReview
	var patch []operation
	if err := json.Unmarshal(answer, &review); err != nil || review.Response == nil || !review.Response.Allowed {
		t.Fatalf("%v: %s", err, answer)
	}
	if err := json.Unmarshal(review.Response.Patch, &patch); err != nil {
		t.Fatalf("%v: %s", err, answer)
	}
	var paths []string
	for _, o := range patch {
		paths = append(paths, o.Path)
	}
	return paths
}

func (l lab) post(t *testing.T, body []byte) []byte {
	t.Helper()
	if l.cluster.Node() != cluster.Simulated {
		pods, err := l.client.CoreV1().Pods(deploy.Namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil || len(pods.Items) == 0 {
			t.Fatalf("%d pods of pod-resizer: %v", len(pods.Items), err)
		}
		answer, err := l.client.CoreV1().RESTClient().Post().Namespace(deploy.Namespace).Resource("pods").Name("https:"+pods.Items[0].Name+":8443").
			SubResource("proxy").Suffix("mutate").SetHeader("Content-Type", "application/json").Body(body).DoRaw(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	webhooks, err := l.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), deploy.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	to := webhooks.Webhooks[0].ClientConfig
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(to.CABundle)
	client := http.Client{Timeout: patience, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13},
	}}
	response, err := client.Post(*to.URL, "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %v: %s", response.Status, err, answer)
	}
	return answer
}

// TestFieldsOfTheFuture: of fields that pod-resizer's Go types do not have, such as a later Kubernetes may bring, it neither changes
// one nor replaces what holds one.
func TestFieldsOfTheFuture(t *testing.T) {
	t.Parallel()
	l := shared
	paths := l.review(t, `{"apiVersion":"v1","kind":"Pod","future":1,
		"metadata":{"name":"future","future":{"a":[1]},"annotations":{"resize.example.com/enabled":"true","resize.example.com/steady-cpu":"app=50m,proxy=10m"}},
		"spec":{"future":[{"name":"app"}],
			"initContainers":[{"name":"proxy","restartPolicy":"Always","future":null,
				"resources":{"limits":{"cpu":"20m","memory":"16Mi","example.com/future":"1"},"future":[{"name":"a"}]}}],
			"containers":[{"name":"app","future":{"cpu":"1"},"startupProbe":{"future":{"port":1}},
				"env":[{"name":"A","future":"B"}],"resizePolicy":[{"resourceName":"memory","restartPolicy":"Future","future":true}],
				"resources":{"requests":{"cpu":"50m","memory":"16Mi"},"limits":{"cpu":"200m","memory":"16Mi"},"future":[{"name":"a"}]}}]}}`)
	if want := []string{
		"/spec/initContainers/0/resources/requests", // There are none.
		"/spec/initContainers/0/resizePolicy",       // Nor this.
		"/spec/containers/0/resources/requests/cpu",
		"/spec/containers/0/resizePolicy/-",
		"/metadata/annotations/resize.example.com~1resolved",
		"/metadata/labels", // Nor these.
	}; !slices.Equal(paths, want) {
		t.Errorf("the patch is of %q, not of %q", paths, want)
	}
}

// TestLimitRanges: what a LimitRange gives a pod, admission sees; what it forbids, the API server refuses when the pod is created.
// Reported to VPA as #8401: pods that exceed a LimitRange were found out about late, or never.
func TestLimitRanges(t *testing.T) {
	t.Parallel()
	list := func(cpu string, memory ...string) corev1.ResourceList {
		all := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
		for _, m := range memory {
			all[corev1.ResourceMemory] = resource.MustParse(m)
		}
		return all
	}
	l := shared
	steady := map[string]string{l.keys.SteadyResources: `{"app":{"limits":{"cpu":"50m"}}}`}
	for _, c := range []struct {
		name        string
		limits      corev1.LimitRangeItem
		annotations map[string]string
		bare        bool   // Whether its author wrote no resources.
		refused     string // By the API server.
		asWritten   string // Refusal of the same pod, not opted in.
	}{
		{
			name:        "defaults make a pod without any resources Guaranteed",
			limits:      corev1.LimitRangeItem{Default: list("200m", "32Mi"), DefaultRequest: list("20m", "16Mi")},
			annotations: steady, bare: true,
		},
		{
			name:        "a percentage is of the default",
			limits:      corev1.LimitRangeItem{Default: list("200m", "32Mi")},
			annotations: map[string]string{l.keys.SteadyResources: "", l.keys.SteadyCPU: "25%"}, bare: true,
		},
		{
			name:        "a startup CPU above the maximum is refused in the LimitRange's words",
			limits:      corev1.LimitRangeItem{Max: list("1")},
			annotations: map[string]string{l.keys.StartupCPU: "2"},
			refused:     "maximum cpu usage per Container is 1, but limit is 2",
		},
		{
			name:      "a pod whose limit may be no more than its request is let in",
			limits:    corev1.LimitRangeItem{MaxLimitRequestRatio: list("1")},
			asWritten: "cpu max limit to request ratio per Container is 1, but provided ratio is 4.000000",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			namespace := l.namespace(t)
			c.limits.Type = corev1.LimitTypeContainer
			if _, err := l.client.CoreV1().LimitRanges(namespace).Create(t.Context(), &corev1.LimitRange{
				ObjectMeta: metav1.ObjectMeta{Name: "range"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{c.limits}},
			}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			pod := l.samplePod(c.annotations)
			if pod.Annotations[l.keys.SteadyResources] == "" {
				delete(pod.Annotations, l.keys.SteadyResources)
			}
			if c.bare {
				pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{}
			}
			client, warned := l.withWarnings(t)
			var created *corev1.Pod
			var err error
			// LimitRanger has them from an informer.
			eventually(t, "the LimitRange at work", func(ctx context.Context) (bool, string) {
				optedOut := pod.DeepCopy()
				optedOut.Annotations[l.keys.Enabled] = "false"
				if c.refused != "" {
					optedOut.Spec.Containers[0].Resources.Limits[corev1.ResourceCPU] = resource.MustParse("2")
				}
				seen, err := l.tryRun(ctx, t, namespace, optedOut)
				return err != nil || c.bare && seen.Spec.Containers[0].Resources.Limits != nil, fmt.Sprint(err)
			})
			if c.asWritten != "" {
				optedOut := pod.DeepCopy()
				optedOut.Annotations[l.keys.Enabled] = "false"
				if _, err := l.tryRun(t.Context(), t, namespace, optedOut); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), c.asWritten) {
					t.Errorf("not opted in: %v", err)
				}
			}
			created, err = client.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
			if c.refused != "" {
				if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), c.refused) {
					t.Errorf("wanted it refused: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			checkWarnings(t, warned.all, nil)
			if request, limit := cpuOf(created); request != startupCPU || limit != startupCPU || created.Status.QOSClass != corev1.PodQOSGuaranteed {
				t.Errorf("created as %s", mustJSON(t, created))
			}
			l.awaitCondition(t, created, plan.CPULowered, "CPU lowered, app 200m to 50m; Guaranteed")
		})
	}
}

// TestQoSClass: the class that the API server gives a pod is the one that pod-resizer has told its author, whatever the pod looks
// like. A pod that was silently not Guaranteed is what users of such tools report most.
func TestQoSClass(t *testing.T) {
	t.Parallel()
	l := shared
	namespace := l.namespace(t)
	const notGuaranteed = "so the pod will not be Guaranteed"
	always := corev1.ContainerRestartPolicyAlways
	sidecar := helper("proxy")
	sidecar.RestartPolicy = &always
	policy := func(name corev1.ResourceName, restart corev1.ResourceResizeRestartPolicy) []corev1.ContainerResizePolicy {
		return []corev1.ContainerResizePolicy{{ResourceName: name, RestartPolicy: restart}}
	}
	app := func(edit func(*corev1.Container)) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { edit(&pod.Spec.Containers[0]) }
	}
	without := func(name corev1.ResourceName, requests, limits bool) func(*corev1.Pod) {
		return app(func(c *corev1.Container) {
			if requests {
				delete(c.Resources.Requests, name)
			}
			if limits {
				delete(c.Resources.Limits, name)
			}
		})
	}
	const restart = `resizePolicy: container "app": "RestartContainer": lowering its CPU `
	for _, c := range []struct {
		name        string
		annotations map[string]string
		edit        func(*corev1.Pod)
		class       corev1.PodQOSClass // Guaranteed if not said.
		says        []string
		left        bool // Whether it is created as written.
	}{
		{name: "an init container, a native sidecar and an application", edit: func(pod *corev1.Pod) {
			pod.Spec.InitContainers = []corev1.Container{helper("migrate"), sidecar}
		}},
		{name: "a name that the API server makes", edit: func(pod *corev1.Pod) { pod.Name, pod.GenerateName = "", "made-" }},
		{name: "the node's network", edit: func(pod *corev1.Pod) { pod.Spec.HostNetwork = true }},
		{name: "restartPolicy Never, with a plain init container", edit: func(pod *corev1.Pod) {
			pod.Spec.RestartPolicy = corev1.RestartPolicyNever
			init := helper("migrate")
			init.Resources.Limits[corev1.ResourceCPU] = *steadyCPU.Quantity() // More would stay reserved, and be warned about.
			pod.Spec.InitContainers = []corev1.Container{init}
		}},
		{name: "restartPolicy OnFailure", edit: func(pod *corev1.Pod) { pod.Spec.RestartPolicy = corev1.RestartPolicyOnFailure }},
		{name: "no requests", edit: app(func(c *corev1.Container) { c.Resources.Requests = nil })},
		{name: "no CPU request", edit: without(corev1.ResourceCPU, true, false)},
		{name: "no CPU limit", edit: app(func(c *corev1.Container) {
			c.Resources.Requests[corev1.ResourceCPU] = *startupCPU.Quantity()
			delete(c.Resources.Limits, corev1.ResourceCPU)
		})},
		{
			name: "no memory limit, of which none is made up", edit: without(corev1.ResourceMemory, false, true), class: corev1.PodQOSBurstable,
			says: []string{`resources.limits.memory: container "app": is not set, ` + notGuaranteed},
		},
		{
			name: "no memory at all", edit: without(corev1.ResourceMemory, true, true), class: corev1.PodQOSBurstable,
			says: []string{`resources.limits.memory: container "app": is not set, ` + notGuaranteed},
		},
		{
			name: "an init container without resources", class: corev1.PodQOSBurstable,
			edit: func(pod *corev1.Pod) {
				pod.Spec.InitContainers = []corev1.Container{{Name: "migrate", Image: deploy.SampleImage}}
			},
			says: []string{`resources.limits.cpu: container "migrate": is not set, ` + notGuaranteed, `resources.limits.memory: container "migrate": is not set, ` + notGuaranteed},
		},
		{
			name: "a native sidecar without a memory limit", class: corev1.PodQOSBurstable,
			edit: func(pod *corev1.Pod) {
				sidecar := sidecar.DeepCopy()
				delete(sidecar.Resources.Limits, corev1.ResourceMemory)
				pod.Spec.InitContainers = []corev1.Container{*sidecar}
			},
			says: []string{`resources.limits.memory: container "proxy": is not set, ` + notGuaranteed},
		},
		{name: "a resize policy of its own for memory", edit: app(func(c *corev1.Container) {
			c.ResizePolicy = policy(corev1.ResourceMemory, corev1.RestartContainer)
		})},
		{
			// Reported to KSCB as #9: the application was restarted.
			name: "a resize policy that restarts", class: corev1.PodQOSBurstable, left: true,
			edit: app(func(c *corev1.Container) { c.ResizePolicy = policy(corev1.ResourceCPU, corev1.RestartContainer) }),
			says: []string{restart + "would restart the container"},
		},
		{
			name: "a resize policy that may restart", annotations: map[string]string{l.keys.AllowRestart: "true"},
			edit: app(func(c *corev1.Container) { c.ResizePolicy = policy(corev1.ResourceCPU, corev1.RestartContainer) }),
			says: []string{restart + "will restart the container"},
		},
		{
			name: "pod-level resources", class: corev1.PodQOSBurstable, left: true,
			edit: func(pod *corev1.Pod) {
				pod.Spec.Resources = &corev1.ResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")},
					Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("200m")},
				}
			},
			says: []string{"spec.resources: "},
		},
		{
			name: "Windows", class: corev1.PodQOSBurstable, left: true,
			edit: func(pod *corev1.Pod) { pod.Spec.OS = &corev1.PodOS{Name: corev1.Windows} },
			says: []string{`spec.os.name: "windows": Kubernetes cannot resize Windows pods`},
		},
		{
			name: "a percentage of no CPU", class: corev1.PodQOSBurstable, left: true,
			annotations: map[string]string{l.keys.SteadyResources: "", l.keys.SteadyCPU: "25%"}, edit: without(corev1.ResourceCPU, true, true),
			says: []string{`resources: container "app": has neither a CPU limit nor a CPU request`},
		},
		{
			name: "a multiple of a percentage", class: corev1.PodQOSBurstable, left: true,
			annotations: map[string]string{l.keys.SteadyResources: "", l.keys.SteadyCPU: "25%", l.keys.StartupCPU: "3x"},
			edit:        without(corev1.ResourceCPU, true, true),
			says:        []string{l.keys.StartupCPU + `: container "app": "3x": is a multiple of the steady CPU, and that is "25%" of this`},
		},
		{
			name: "a multiple where there is no CPU", annotations: map[string]string{l.keys.StartupCPU: "4x"},
			edit: without(corev1.ResourceCPU, true, true),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			pod := l.samplePod(c.annotations)
			if pod.Annotations[l.keys.SteadyResources] == "" {
				delete(pod.Annotations, l.keys.SteadyResources)
			}
			if c.edit != nil {
				c.edit(pod)
			}
			created, warned, err := l.try(t, namespace, pod)
			if err != nil {
				t.Fatal(err)
			}
			if pod.Spec.Resources != nil && created.Spec.Resources == nil {
				t.Skip("this version of Kubernetes drops pod-level resources")
			}
			if c.class == "" {
				c.class = corev1.PodQOSGuaranteed
			}
			if created.Status.QOSClass != c.class {
				t.Errorf("its class is %s", created.Status.QOSClass)
			}
			checkWarnings(t, warned, c.says)
			if c.left {
				if !asWritten(created, pod) {
					t.Errorf("changed: %s", mustJSON(t, created))
				}
				return
			}
			if request, limit := cpuOf(created); request != startupCPU || limit != startupCPU {
				t.Errorf("request %s, limit %s", request, limit)
			}
			for i, container := range plan.Containers(&created.Spec) {
				wrote := plan.Containers(&pod.Spec)[i]
				want := wrote.ResizePolicy
				if container.Name == "app" && c.annotations[l.keys.AllowRestart] == "" {
					want = append(slices.Clip(want), cpuNotRequired())
				}
				if !slices.Equal(container.ResizePolicy, want) || !container.Resources.Limits.Memory().Equal(*wrote.Resources.Limits.Memory()) {
					t.Errorf("%s has resize policy %v and resources %s", container.Name, container.ResizePolicy, mustJSON(t, container.Resources))
				}
			}
		})
	}

	t.Run("of every pod that the unit tests have", func(t *testing.T) {
		files, err := filepath.Glob(filepath.Join(deploy.Root(), "webhook", "testdata", "*.pod.yaml"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%d pods: %v", len(files), err)
		}
		guaranteed := 0
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			pod := &corev1.Pod{}
			if err := yaml.Unmarshal(text, pod); err != nil {
				t.Fatal(err)
			}
			pod.Namespace = ""
			created, warned, err := l.try(t, namespace, pod)
			if err != nil { // Requests above limits, above all.
				optedOut := pod.DeepCopy()
				delete(optedOut.Annotations, l.keys.Enabled)
				if _, _, err := l.try(t, namespace, optedOut); err == nil {
					t.Errorf("%s: refused only when opted in: %v", filepath.Base(file), err)
				}
				continue
			}
			if _, followed := created.Annotations[l.keys.Resolved]; !followed || !l.keys.OptedIn(pod.Annotations) {
				continue
			}
			is, said := created.Status.QOSClass == corev1.PodQOSGuaranteed, strings.Contains(strings.Join(warned, "\n"), notGuaranteed)
			if is == said {
				t.Errorf("%s: it is %s, and the warnings are %q", filepath.Base(file), created.Status.QOSClass, warned)
			}
			if is {
				guaranteed++
			}
		}
		t.Logf("%d of %d pods are Guaranteed", guaranteed, len(files))
	})
}

// TestEphemeralContainers: a person debugs an opted-in pod, while it starts and afterwards. Kubernetes gives such containers no
// resources, and pod-resizer's webhook is not asked.
func TestEphemeralContainers(t *testing.T) {
	t.Parallel()
	l := shared
	pod := l.create(t, l.samplePod(nil))
	debug := func(name string) *corev1.Pod {
		t.Helper()
		patch := fmt.Sprintf(`{"spec":{"ephemeralContainers":[{"name":%q,"image":%q,"args":["-help"],"targetContainerName":"app"}]}}`, name, deploy.SampleImage)
		patched, err := l.client.CoreV1().Pods(pod.Namespace).Patch(t.Context(), pod.Name, types.StrategicMergePatchType, []byte(patch),
			metav1.PatchOptions{}, "ephemeralcontainers")
		if err != nil {
			t.Fatal(err)
		}
		return patched
	}
	debug("while-starting")
	steady := l.awaitCondition(t, pod, plan.CPULowered, "CPU lowered, app 200m to 50m; Guaranteed")
	l.checkQuota(t, steady, steadyCPU)
	after := debug("afterwards")
	if request, limit := cpuOf(after); request != steadyCPU || limit != steadyCPU || after.Status.QOSClass != corev1.PodQOSGuaranteed {
		t.Errorf("request %s, limit %s, %s", request, limit, after.Status.QOSClass)
	}
	var names []string
	for _, c := range after.Spec.EphemeralContainers {
		names = append(names, c.Name)
		if len(c.Resources.Requests)+len(c.Resources.Limits)+len(c.ResizePolicy)+len(c.Env) > 0 {
			t.Errorf("touched: %s", mustJSON(t, c))
		}
	}
	if want := []string{"afterwards", "while-starting"}; !slices.Equal(names, want) { // A patch puts what is new first.
		t.Errorf("ephemeral containers %q, not %q", names, want)
	}
	if writes, want := l.writes(t, pod.Namespace, pod.Name), []string{"patch pods/resize 200", "patch pods/status 200"}; !slices.Equal(writes, want) {
		t.Errorf("the product wrote %q, not %q", writes, want)
	}
}

// TestOtherResourcesStay: a GPU, and hugepages where the node is simulated, come through admission and through the resize. Other
// tools have clobbered them.
func TestOtherResourcesStay(t *testing.T) {
	t.Parallel()
	l := shared
	const gpu, hugepages = "example.com/gpu", corev1.ResourceHugePagesPrefix + "2Mi"
	node, has := "node", map[string]string{gpu: "1"}
	if l.cluster.Node() == cluster.Simulated {
		node, has[hugepages] = "simulated-0", "8Mi"
	}
	// A kubelet keeps what somebody else has put in.
	patch := mustJSON(t, map[string]any{"status": map[string]any{"capacity": has, "allocatable": has}})
	if _, err := l.client.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	pod := l.samplePod(nil)
	r := pod.Spec.Containers[0].Resources
	for name := range has {
		amount := resource.MustParse("1")
		if name == hugepages {
			amount = resource.MustParse("4Mi")
		}
		r.Requests[corev1.ResourceName(name)], r.Limits[corev1.ResourceName(name)] = amount, amount
	}
	check := func(got *corev1.Pod, cpu plan.MilliCPU) {
		t.Helper()
		want := r.DeepCopy()
		want.Requests[corev1.ResourceCPU], want.Limits[corev1.ResourceCPU] = *cpu.Quantity(), *cpu.Quantity()
		if got := got.Spec.Containers[0].Resources; mustJSON(t, got) != mustJSON(t, want) {
			t.Errorf("it has %s, not %s", mustJSON(t, got), mustJSON(t, want))
		}
	}
	created := l.create(t, pod)
	check(created, startupCPU)
	check(l.awaitCondition(t, created, plan.CPULowered, "CPU lowered, app 200m to 50m; Guaranteed"), steadyCPU)
}

// TestLargerThanAnyNode: a pod whose startup CPU no node has waits for one that has. As an opportunistic one it starts at its steady
// CPU. Reported to KSCB as #36: the boosted pod stayed Pending.
func TestLargerThanAnyNode(t *testing.T) {
	t.Parallel()
	l := shared
	const tooMuch = "2000" // A simulated node has 1000.
	t.Run("reserved, it waits", func(t *testing.T) {
		t.Parallel()
		pod := l.create(t, l.samplePod(map[string]string{l.keys.StartupCPU: tooMuch}))
		if request, limit := cpuOf(pod); request != 2_000_000 || limit != 2_000_000 {
			t.Errorf("request %s, limit %s", request, limit)
		}
		eventually(t, "unschedulable", func(ctx context.Context) (bool, string) {
			now, err := l.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
			if err != nil {
				return false, err.Error()
			}
			c := conditionOf(now, corev1.PodScheduled)
			return c.Reason == corev1.PodReasonUnschedulable && strings.Contains(c.Message, "Insufficient cpu"), mustJSON(t, now)
		})
	})
	t.Run("opportunistic, it starts", func(t *testing.T) {
		t.Parallel()
		pod := l.create(t, l.samplePod(map[string]string{l.keys.StartupCPU: tooMuch, l.keys.Boost: string(plan.Opportunistic)}))
		if request, limit := cpuOf(pod); request != steadyCPU || limit != steadyCPU {
			t.Errorf("request %s, limit %s", request, limit)
		}
		l.awaitCondition(t, pod, plan.NoRoom, "")
	})
}
