package webhook

import (
	"bytes"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Pod is what Mutate reads of a pod. The rest, such as volumes and what the probes do, is most of the pod, and is skipped.
type Pod struct {
	Metadata struct {
		Annotations map[string]string `json:"annotations"`
		Labels      map[string]string `json:"labels"`
	} `json:"metadata"`
	Spec struct {
		OS             *corev1.PodOS     `json:"os"`
		NodeSelector   map[string]string `json:"nodeSelector"`
		Resources      *resources        `json:"resources"`
		InitContainers []container       `json:"initContainers"`
		Containers     []container       `json:"containers"`
	} `json:"spec"`
}

type container struct {
	Name           string                         `json:"name"`
	Env            []variable                     `json:"env"`
	EnvFrom        []corev1.EnvFromSource         `json:"envFrom"`
	Resources      resources                      `json:"resources"`
	ResizePolicy   []corev1.ContainerResizePolicy `json:"resizePolicy"`
	RestartPolicy  *corev1.ContainerRestartPolicy `json:"restartPolicy"`
	StartupProbe   *struct{}                      `json:"startupProbe"`
	ReadinessProbe *struct{}                      `json:"readinessProbe"`
}

type variable struct {
	Name      string    `json:"name"`
	Value     string    `json:"value"`
	ValueFrom *struct{} `json:"valueFrom"`
}

type resources struct {
	Requests amounts                `json:"requests"`
	Limits   amounts                `json:"limits"`
	Claims   []corev1.ResourceClaim `json:"claims"`
}

type amounts map[corev1.ResourceName]quantity

// quantity refuses an exponent that would keep the parser busy for seconds. The API server sends none: it caps quantities.
type quantity struct{ resource.Quantity }

// UnmarshalJSON takes what resource.Quantity does, other than 1E10000000.
func (q *quantity) UnmarshalJSON(data []byte) error {
	const digits = 3 // 1E-09 has two; nothing that Kubernetes counts needs more.
	if e := bytes.LastIndexAny(data, "eE"); e >= 0 && len(bytes.Trim(data[e+1:], `+-"`)) >= digits {
		return fmt.Errorf("quantity %.40q: the exponent is too long", data)
	}
	return q.Quantity.UnmarshalJSON(data)
}

// typed is the pod in the types of the API.
func (p *Pod) typed() *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Annotations: p.Metadata.Annotations, Labels: p.Metadata.Labels},
		Spec: corev1.PodSpec{
			OS: p.Spec.OS, NodeSelector: p.Spec.NodeSelector,
			InitContainers: typed(p.Spec.InitContainers), Containers: typed(p.Spec.Containers),
		},
	}
	if r := p.Spec.Resources; r != nil {
		pod.Spec.Resources = new(r.typed())
	}
	return pod
}

func typed(containers []container) []corev1.Container {
	all := make([]corev1.Container, len(containers))
	for i, c := range containers {
		all[i] = corev1.Container{
			Name: c.Name, EnvFrom: c.EnvFrom, Resources: c.Resources.typed(), ResizePolicy: c.ResizePolicy, RestartPolicy: c.RestartPolicy,
		}
		for _, v := range c.Env {
			e := corev1.EnvVar{Name: v.Name, Value: v.Value}
			if v.ValueFrom != nil {
				e.ValueFrom = &corev1.EnvVarSource{}
			}
			all[i].Env = append(all[i].Env, e)
		}
		if c.StartupProbe != nil {
			all[i].StartupProbe = &corev1.Probe{}
		}
		if c.ReadinessProbe != nil {
			all[i].ReadinessProbe = &corev1.Probe{}
		}
	}
	return all
}

func (r resources) typed() corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: r.Requests.typed(), Limits: r.Limits.typed(), Claims: r.Claims}
}

func (a amounts) typed() corev1.ResourceList {
	if a == nil {
		return nil
	}
	list := make(corev1.ResourceList, len(a))
	for name, q := range a {
		list[name] = q.Quantity
	}
	return list
}
