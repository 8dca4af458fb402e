package cluster

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	_ "embed"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"pod-resizer/test/cluster/internal/supervise"
)

// Names and addresses of a real node. They are inside the cluster's own network namespace: two clusters do not meet, so
// all of them use the same ones.
const (
	nodeName    = "node"
	bridgeName  = "cni0"
	podSubnet   = "10.244.0.0/24"
	nodeIP      = "10.244.0.1" // the bridge; a kubelet takes no loopback address
	serviceCIDR = "10.96.0.0/16"
	serviceIP   = "10.96.0.1" // the `kubernetes` Service: an address of the node, so that pods need no kube-proxy

	containerdSocket = "/run/containerd/containerd.sock"
	pauseImage       = "localhost/pause:1"
)

// ports are those of the control plane, on 127.0.0.1.
type ports struct{ apiServer, etcd, etcdPeer int }

// choosePorts takes the usual ones where the cluster has a network of its own, else some that are free at this moment.
func choosePorts(ctx context.Context, node Node) (ports, error) {
	if node.real() {
		return ports{443, 2379, 2380}, nil
	}
	var free []int
	for range 3 {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return ports{}, fmt.Errorf("finding a free port: %w", err)
		}
		defer l.Close() // not before all are found, so that they differ
		free = append(free, l.Addr().(*net.TCPAddr).Port)
	}
	return ports{free[0], free[1], free[2]}, nil
}

func local(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// config writes certificates and configuration files and says what the supervisor is to run.
type config struct {
	dir      string // the cluster's folder
	name     string
	node     Node
	ports    ports
	server   string // the API server's URL on the host
	binaries binaries
}

func (c config) path(elem ...string) string {
	return filepath.Join(append([]string{c.dir}, elem...)...)
}

func (c config) write() error {
	for _, d := range []string{
		filepath.Join(pkiDir, besideDir), filepath.Join(configDir, "cni"), logsDir, tmpDir, etcdDir, containerdDir, kubeletDir, cniDir,
		podLogsDir,
	} {
		if err := os.MkdirAll(c.path(d), 0o700); err != nil {
			return fmt.Errorf("making the cluster's folder: %w", err)
		}
	}
	ca, err := newAuthority(c.path(pkiDir))
	if err != nil {
		return err
	}
	for _, id := range []identity{
		{File: "apiserver", Name: "kube-apiserver", Hosts: []string{
			"127.0.0.1", "localhost", serviceIP, nodeIP, "kubernetes", "kubernetes.default", "kubernetes.default.svc",
			"kubernetes.default.svc.cluster.local",
		}},
		{File: "kubelet", Name: "system:node:" + nodeName, Groups: []string{"system:nodes"}, Hosts: []string{nodeName, nodeIP}},
		{File: "kubelet-client", Name: "kube-apiserver-kubelet-client", Groups: []string{"system:masters"}},
		{File: "front-proxy-client", Name: "front-proxy-client"},
		{File: "controller-manager", Name: "system:kube-controller-manager"},
		{File: "scheduler", Name: "system:kube-scheduler"},
		{File: "kwok", Name: "kwok", Groups: []string{"system:masters"}}, // it plays kubelets, and there is no role for that
		{File: filepath.Join(besideDir, "tls"), Name: "beside", Hosts: []string{"127.0.0.1", "localhost"}},
		{File: "admin", Name: "admin", Groups: []string{"system:masters"}},
	} {
		if err := ca.issue(id); err != nil {
			return err
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("generating the service account key: %w", err)
	}
	if err := writeKey(c.path(pkiDir, "service-account.key"), key); err != nil {
		return err
	}
	for _, who := range []string{"kubelet", "controller-manager", "scheduler", "kwok"} {
		if err := ca.writeKubeconfig(c.path(configDir, who+".kubeconfig"), "https://"+local(c.ports.apiServer), who); err != nil {
			return err
		}
	}
	if err := ca.writeKubeconfig(c.path(kubeconfigFile), c.server, "admin"); err != nil {
		return err
	}
	for file, content := range map[string]string{
		"containerd.toml": c.containerdConfig(),
		"kubelet.yaml":    c.kubeletConfig(),
		"audit.yaml":      auditPolicy,
		"stages.yaml":     stages,
		"cni/10-pods.conflist": fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [{
  "type": "bridge", "bridge": %q, "isGateway": true, "ipMasq": false,
  "ipam": {"type": "host-local", "dataDir": "/var/lib/cni/networks", "ranges": [[{"subnet": %q, "gateway": %q}]],
    "routes": [{"dst": "0.0.0.0/0"}]}
}]}`, bridgeName, podSubnet, nodeIP),
	} {
		if err := os.WriteFile(c.path(configDir, file), []byte(content), 0o600); err != nil {
			return fmt.Errorf("writing a configuration file: %w", err)
		}
	}
	return nil
}

// spec puts a cluster with a real node into a machine of its own.
func (c config) spec() supervise.Spec {
	if !c.node.real() {
		return supervise.Spec{Components: c.components(), Ending: c.path(endingFile), Processes: c.path(processesFile), Socket: c.path(socketFile)}
	}
	return supervise.Spec{Components: c.components(), Ending: c.path(endingFile), Isolation: &supervise.Isolation{
		Hostname: nodeName,
		Cgroup:   cgroupName(c.name),
		// What these programs keep goes to their usual places, which only the cluster sees.
		Binds: []supervise.Bind{
			{Source: c.path(containerdDir), Target: "/var/lib/containerd"},
			{Source: c.path(kubeletDir), Target: "/var/lib/kubelet"},
			{Source: c.path(cniDir), Target: "/var/lib/cni"},
			{Source: c.path(podLogsDir), Target: "/var/log/pods"},
			{Target: "/var/log/containers"},
		},
		// What the kubelet demands (pkg/util/sysctl in k8s.io/kubernetes); it would set them on the whole machine.
		Sysctls: map[string]string{
			"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
			"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
		},
		Bridge:     bridgeName,
		BridgeAddr: nodeIP + "/24",
		LocalAddrs: []string{serviceIP + "/32"},
		Proxy:      local(c.ports.apiServer),
	}}
}

func (c config) components() []supervise.Component {
	pki := func(file string) string { return c.path(pkiDir, file) }
	kubeconfig := func(who string) string { return "--kubeconfig=" + c.path(configDir, who+".kubeconfig") }
	etcd, peer, apiServer := "http://"+local(c.ports.etcd), "http://"+local(c.ports.etcdPeer), local(c.ports.apiServer)
	all := []supervise.Component{{
		Name: "etcd",
		Args: []string{
			"--name=default", "--data-dir=" + c.path(etcdDir),
			"--unsafe-no-fsync", // the data need not survive a power cut
			"--listen-client-urls=" + etcd, "--advertise-client-urls=" + etcd,
			"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=default=" + peer,
		},
		Ready: "tcp://" + local(c.ports.etcd),
	}, {
		Name:  "kube-apiserver",
		After: []string{"etcd"},
		Args: []string{
			"--etcd-servers=" + etcd, fmt.Sprintf("--secure-port=%d", c.ports.apiServer),
			"--tls-cert-file=" + pki("apiserver.crt"), "--tls-private-key-file=" + pki("apiserver.key"),
			"--client-ca-file=" + pki("ca.crt"),
			"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
			"--service-account-key-file=" + pki("service-account.key"),
			"--service-account-signing-key-file=" + pki("service-account.key"),
			"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
			"--service-cluster-ip-range=" + serviceCIDR, "--allow-privileged=true",
			// Calls webhooks and aggregated APIs at pod IPs, as there is no kube-proxy.
			"--enable-aggregator-routing=true",
			"--requestheader-client-ca-file=" + pki("ca.crt"), "--requestheader-allowed-names=front-proxy-client",
			"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
			"--requestheader-extra-headers-prefix=X-Remote-Extra-",
			"--proxy-client-cert-file=" + pki("front-proxy-client.crt"), "--proxy-client-key-file=" + pki("front-proxy-client.key"),
			// Logs, exec and port-forward. No DNS knows the node's name.
			"--kubelet-client-certificate=" + pki("kubelet-client.crt"), "--kubelet-client-key=" + pki("kubelet-client.key"),
			"--kubelet-certificate-authority=" + pki("ca.crt"), "--kubelet-preferred-address-types=InternalIP",
			"--audit-policy-file=" + c.path(configDir, "audit.yaml"), "--audit-log-path=" + c.path(auditFile),
		},
		Ready: "https://" + apiServer + "/readyz",
	}, {
		Name:  "kube-controller-manager",
		After: []string{"kube-apiserver"},
		Args: []string{
			kubeconfig("controller-manager"), "--leader-elect=false", "--secure-port=0", "--use-service-account-credentials=true",
			// At its default of 20 requests a second it spends 5 s on its own start.
			"--kube-api-qps=1000", "--kube-api-burst=1000",
			"--service-account-private-key-file=" + pki("service-account.key"), "--root-ca-file=" + pki("ca.crt"),
			"--flex-volume-plugin-dir=/var/lib/kubelet/volume-plugins",
		},
	}, {
		Name:  "kube-scheduler",
		After: []string{"kube-apiserver"},
		Args: []string{
			kubeconfig("scheduler"), "--leader-elect=false", "--secure-port=0",
			"--kube-api-qps=1000", "--kube-api-burst=1000", // at its default of 50, thousands of pods wait for it
		},
	}}
	server := &all[1]
	if c.node.real() {
		// Reachable from pods at serviceIP, and from nowhere else: the network namespace has no way out.
		server.Args = append(server.Args, "--bind-address=0.0.0.0", "--advertise-address="+nodeIP)
		all = append(all, supervise.Component{
			Name:  "containerd",
			Args:  []string{"--config=" + c.path(configDir, "containerd.toml")},
			Ready: "unix://" + containerdSocket,
		}, supervise.Component{
			Name:  "kubelet",
			After: []string{"kube-apiserver", "containerd"},
			Args: []string{
				kubeconfig("kubelet"), "--config=" + c.path(configDir, "kubelet.yaml"),
				"--hostname-override=" + nodeName, "--node-ip=" + nodeIP,
			},
		})
	} else {
		// No pod needs the `kubernetes` Service, and no endpoint may be a loopback address.
		server.Args = append(server.Args, "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none")
	}
	if c.node.simulated() {
		all = append(all, supervise.Component{
			Name:  "kwok",
			After: []string{"kube-apiserver"},
			// kwok/stages.yaml holds its options, too.
			Args: []string{kubeconfig("kwok"), "--config=" + csvField(c.path(configDir, "stages.yaml")), "-v=WARN"},
			Env:  []string{"GOGC=400"}, // a third of its time, with thousands of pods, goes into collecting garbage
		})
	}
	env := []string{"PATH=" + strings.Join(append(c.binaries.dirs(), os.Getenv("PATH")), ":"), "TMPDIR=" + c.path(tmpDir), "HOME=" + c.path(tmpDir)}
	for i := range all {
		all[i].Path, all[i].Log = c.binaries[all[i].Name], c.path(logsDir, all[i].Name+".log")
		all[i].Env = slices.Concat(env, all[i].Env)
	}
	return all
}

// csvField is a value of a flag that takes several, with commas.
func csvField(value string) string { return `"` + strings.ReplaceAll(value, `"`, `""`) + `"` }

func (c config) containerdConfig() string {
	snapshotter := "overlayfs"
	if onOverlay(c.dir) {
		snapshotter = "native" // an overlay cannot lie on an overlay, which is what a container's own root usually is
	}
	// restrict_oom_score_adj: lowering a score takes CAP_SYS_RESOURCE, which a machine may lack; runc then fails with
	// "can't get final child's PID from pipe".
	return fmt.Sprintf(`version = 3
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.internal.v1.opt", "io.containerd.internal.v1.tracing",
  "io.containerd.tracing.processor.v1.otlp"]
[plugins.'io.containerd.cri.v1.images']
  snapshotter = %q
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = %q
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = [%q]
    conf_dir = %q
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = 'io.containerd.runc.v2'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = %q
`, snapshotter, pauseImage, filepath.Dir(c.binaries["bridge"]), c.path(configDir, "cni"), c.binaries["runc-noseccomp"])
}

func (c config) kubeletConfig() string {
	// Images cannot be pulled again and the machine's disk is not the cluster's: nothing is collected or evicted.
	return fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {x509: {clientCAFile: %q}}
tlsCertFile: %q
tlsPrivateKeyFile: %q
cgroupDriver: cgroupfs
cgroupRoot: /%s
failCgroupV1: false
failSwapOn: false
containerRuntimeEndpoint: unix://%s
enforceNodeAllocatable: [pods]
localStorageCapacityIsolation: false
evictionHard: {nodefs.available: "0%%"}
imageGCHighThresholdPercent: 100
resolvConf: ""
volumePluginDir: /var/lib/kubelet/volume-plugins
`, c.path(pkiDir, "ca.crt"), c.path(pkiDir, "kubelet.crt"), c.path(pkiDir, "kubelet.key"), cgroupName(c.name), containerdSocket)
}

// stages are what simulated nodes and their pods go through.
//
//go:embed kwok/stages.yaml
var stages string

// auditPolicy records who wrote what, which tests count. Leases that nodes renew all the time would only bury it.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  verbs: [get, list, watch]
- level: None
  resources: [{group: coordination.k8s.io, resources: [leases]}]
  namespaces: [kube-node-lease, kube-system]
- level: Metadata
`
