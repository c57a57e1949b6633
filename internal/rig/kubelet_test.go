// SPDX-License-Identifier: Apache-2.0

package rig_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
)

// cluster is a rig with two nodes, one and two, on each of which a Pod of the node's name serves its name at port 8080.
type cluster struct {
	*rig.Rig
	kubernetes.Interface
	one, two *rig.KubeletNode
}

// startKubelets starts nodes of these names at the same time.
func startKubelets(t *testing.T, r *rig.Rig, names ...string) []*rig.KubeletNode {
	t.Helper()
	started := time.Now()
	nodes := make([]*rig.KubeletNode, len(names))
	group, ctx := errgroup.WithContext(t.Context())
	for i, name := range names {
		group.Go(func() (err error) {
			nodes[i], err = r.StartKubeletNode(ctx, rig.KubeletNodeOptions{Name: name})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	rigtest.LoadBusybox(t, nodes...)
	t.Logf("%d nodes Ready, with an image, after %v", len(nodes), time.Since(started).Round(time.Millisecond))
	return nodes
}

// needRoot skips a test that cannot be run without root.
func needRoot(t *testing.T) {
	t.Helper()
	rigtest.Need(t)
	if os.Geteuid() != 0 {
		t.Skip(rig.ErrNeedsRoot)
	}
}

// shellPod is a Pod on a node that runs a script.
func shellPod(name, node, script string) *corev1.Pod {
	pod := newPod(name)
	pod.Labels = map[string]string{"app": name}
	pod.Spec.NodeName = node
	pod.Spec.TerminationGracePeriodSeconds = new(int64)
	pod.Spec.Containers[0].Image = rigtest.Busybox
	pod.Spec.Containers[0].Command = []string{"/bin/sh", "-c", script}
	return pod
}

func ready(t *testing.T, c kubernetes.Interface, name string) *corev1.Pod {
	t.Helper()
	return waitPod(t, c, name, "Ready", func(p *corev1.Pod) bool { return condition(p, corev1.PodReady) == corev1.ConditionTrue })
}

// serving is a Pod that serves what an init container left in an emptyDir.
func serving(name, node string) *corev1.Pod {
	pod := shellPod(name, node, "exec httpd -f -p 8080 -h /www")
	mounts := []corev1.VolumeMount{{Name: "www", MountPath: "/www"}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "www", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	pod.Spec.Containers[0].VolumeMounts = mounts
	pod.Spec.InitContainers = []corev1.Container{{
		Name: "content", Image: rigtest.Busybox, Command: []string{"/bin/sh", "-c", "hostname >/www/index.html"}, VolumeMounts: mounts,
	}}
	return pod
}

// TestKubelet runs everything that needs no rig of its own on one.
func TestKubelet(t *testing.T) {
	needRoot(t)
	r := rigtest.Start(t, rig.Options{Kubelets: true})
	nodes := startKubelets(t, r, "one", "two")
	c := cluster{Rig: r, Interface: client(t, r, "tester"), one: nodes[0], two: nodes[1]}
	for _, n := range nodes {
		create(t, c, serving(n.Name(), n.Name()))
	}
	for _, n := range nodes {
		ready(t, c, n.Name())
	}
	t.Run("connects Pods", c.connectsPods)
	t.Run("carries Services", c.carriesServices)
	t.Run("shows the API server to Pods", c.showsAPIServer)
	t.Run("answers kubectl", c.answersKubectl)
	t.Run("has control groups of its own", c.hasControlGroups)
	t.Run("keeps its files from the other node", c.keepsFiles)
	t.Run("gives a Pod its mounts and devices", c.givesMounts)
	t.Run("enforces Pod security", c.enforcesSecurity)
	t.Run("refuses a kubelet what is another node's", c.restrictsKubelets)
	t.Run("refuses strangers at the kubelet", c.refusesStrangers)
	t.Run("runs Deployments and DaemonSets", c.runsWorkloads)
	t.Run("survives its containerd", c.survivesContainerd)
	t.Run("survives its kubelet", c.survivesKubelet)
	t.Run("loses its node when the cable is pulled", c.losesNode)
	t.Run("loses its power", c.losesPower)
	t.Run("comes back under its name", c.comesBack)
}

// in runs a script in the Pod and returns what it printed.
func (c cluster) in(t *testing.T, pod, script string) string {
	t.Helper()
	return c.kubectl(t, "exec", pod, "--", "/bin/sh", "-c", script)
}

func (c cluster) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	var said strings.Builder
	cmd := c.Kubectl(t.Context(), args...)
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kubectl %s: %v: %s", strings.Join(args, " "), err, &said)
	}
	return strings.TrimSpace(string(out))
}

func (c cluster) address(t *testing.T, pod string) string { return ready(t, c, pod).Status.PodIP }

func (c cluster) connectsPods(t *testing.T) {
	for _, from := range []string{"one", "two"} {
		for _, to := range []string{"one", "two"} {
			if got := c.in(t, from, "wget -qO- http://"+c.address(t, to)+":8080/"); got != to {
				t.Errorf("from %s: %s says %q", from, to, got)
			}
		}
	}
	conn, err := c.one.Dial(t.Context(), "tcp", c.address(t, "two")+":8080")
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
}

// service makes a Service of a Pod and returns its address.
func (c cluster) service(t *testing.T, pod string) string {
	t.Helper()
	s, err := c.CoreV1().Services(metav1.NamespaceDefault).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: pod},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": pod}, Ports: []corev1.ServicePort{{Port: 80, TargetPort: fromInt(8080)}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s.Spec.ClusterIP
}

func (c cluster) carriesServices(t *testing.T) {
	for _, to := range []string{"one", "two"} {
		address := c.service(t, to)
		for _, from := range []string{"one", "two"} {
			// kube-proxy takes its time, and rejects until then.
			got := c.in(t, from, "until wget -qO- http://"+address+"/; do sleep 0.1; done")
			if got != to {
				t.Errorf("from %s: service %s says %q", from, to, got)
			}
		}
		// The API server has no kube-proxy beside it.
		got, err := c.CoreV1().Services(metav1.NamespaceDefault).ProxyGet("http", to, "80", "/", nil).DoRaw(t.Context())
		if err != nil || strings.TrimSpace(string(got)) != to {
			t.Errorf("by the API server: service %s says %q, %v", to, got, err)
		}
	}
}

func (c cluster) showsAPIServer(t *testing.T) {
	if got := c.in(t, "one", "echo $KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT"); got != "10.96.0.1:443" {
		t.Fatalf("the API server is at %s", got)
	}
	c.in(t, "one", "nc 10.96.0.1 443 </dev/null")
	const secrets = "/var/run/secrets/kubernetes.io/serviceaccount/"
	config := &rest.Config{
		Host:            "https://10.96.0.1",
		BearerToken:     c.in(t, "one", "cat "+secrets+"token"),
		TLSClientConfig: rest.TLSClientConfig{CAData: []byte(c.in(t, "one", "cat "+secrets+"ca.crt"))},
		Dial:            c.one.Dial,
	}
	inside, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	review, err := inside.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	user := review.Status.UserInfo
	if node := user.Extra["authentication.kubernetes.io/node-name"]; user.Username != "system:serviceaccount:default:default" || !slices.Equal(node, []string{"one"}) {
		t.Errorf("the API server takes the Pod for %q on %q", user.Username, node)
	}
}

func (c cluster) answersKubectl(t *testing.T) {
	create(t, c, shellPod("says", "two", "echo what it says; exec sleep 1000000"))
	ready(t, c, "says")
	if got := c.kubectl(t, "logs", "says"); got != "what it says" {
		t.Errorf("log %q", got)
	}
	if got := c.in(t, "says", "id -u; hostname"); got != "0\nsays" {
		t.Errorf("exec: %q", got)
	}
	if got := c.kubectl(t, "get", "node", "two", "-o", "jsonpath={.status.nodeInfo.kubeletVersion}"); !strings.HasPrefix(got, "v1.") {
		t.Errorf("kubelet of version %q", got)
	}
}

func (c cluster) hasControlGroups(t *testing.T) {
	uid := string(ready(t, c, "one").UID)
	var found, elsewhere int
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.Contains(d.Name(), uid) {
			if strings.Contains(path, "/"+filepath.Base(c.Dir())+"-") {
				found++
			} else {
				elsewhere++
			}
		}
		return nil
	})
	if err != nil || found == 0 || elsewhere > 0 {
		t.Errorf("%d control groups of the Pod within those of its node, %d elsewhere, %v", found, elsewhere, err)
	}
	if got, err := c.one.Command(t.Context(), "find", "/sys/fs/cgroup/", "-name", "*"+uid+"*").Output(); err != nil || len(got) == 0 {
		t.Errorf("the node sees %q, %v", got, err)
	}
}

func (c cluster) keepsFiles(t *testing.T) {
	for _, folder := range []string{"/var/lib/virtloom", "/etc", "/var/lib", "/run", "/opt", "/var/lib/kubelet"} {
		path := filepath.Join(folder, filepath.Base(c.Dir()))
		if out, err := c.one.Command(t.Context(), "sh", "-c", "echo one >"+path).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if got, err := os.ReadFile(c.one.HostPath(path)); err != nil || string(got) != "one\n" {
			t.Errorf("HostPath %s: %q, %v", path, got, err)
		}
		for _, elsewhere := range []string{path, c.two.HostPath(path)} {
			if _, err := os.Stat(elsewhere); !os.IsNotExist(err) {
				t.Errorf("%s: %v", elsewhere, err)
			}
		}
	}
	f, err := c.Fabric(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	shared := filepath.Join(f.SharedDir(), "file")
	if out, err := c.one.Command(t.Context(), "sh", "-c", "echo all >"+shared).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, path := range []string{shared, c.two.HostPath(shared)} {
		if got, err := os.ReadFile(path); err != nil || string(got) != "all\n" {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
}

func (c cluster) givesMounts(t *testing.T) {
	both := corev1.MountPropagationBidirectional
	pod := shellPod("privileged", "one", `set -e
mkdir /pods/$UID/mounted
mount -t tmpfs mounted /pods/$UID/mounted
echo seen >/pods/$UID/mounted/file
exec sleep 1000000`)
	pod.Spec.HostPID = true
	container := &pod.Spec.Containers[0]
	privileged := true
	container.SecurityContext = &corev1.SecurityContext{Privileged: &privileged}
	container.Env = []corev1.EnvVar{{Name: "UID", ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.uid"},
	}}}
	container.ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, TimeoutSeconds: 10, ProbeHandler: corev1.ProbeHandler{
		Exec: &corev1.ExecAction{Command: []string{"/bin/sh", "-c", "cat /pods/$UID/mounted/file"}},
	}}
	for name, path := range map[string]string{"pods": "/var/lib/kubelet/pods", "dev": "/dev", "run": "/var/run/kubevirt"} {
		kind := corev1.HostPathDirectoryOrCreate
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &kind},
		}})
	}
	container.VolumeMounts = []corev1.VolumeMount{
		{Name: "pods", MountPath: "/pods", MountPropagation: &both},
		{Name: "run", MountPath: "/run/kubevirt", MountPropagation: &both},
		{Name: "dev", MountPath: "/dev"},
	}
	create(t, c, pod)
	folder := "/var/lib/kubelet/pods/" + string(ready(t, c, "privileged").UID)
	if got, err := c.one.Command(t.Context(), "cat", folder+"/mounted/file").Output(); err != nil || string(got) != "seen\n" {
		t.Errorf("what the Pod mounted is on the node: %q, %v", got, err)
	}
	if got, err := c.two.Command(t.Context(), "ls", folder).CombinedOutput(); err == nil {
		t.Errorf("what the Pod mounted is on the other node: %s", got)
	}
	if got := c.in(t, "privileged", "ls -d /dev/net/tun /dev/null; hostname; ls -d /proc/1/root/var/lib/virtloom"); !strings.Contains(got, "/dev/net/tun") {
		t.Errorf("the Pod has %s", got)
	}
	if out, err := c.one.Command(t.Context(), "test", "-S", "/var/lib/kubelet/device-plugins/kubelet.sock").CombinedOutput(); err != nil {
		t.Errorf("no socket for device plugins: %v %s", err, out)
	}
	if out, err := c.one.Command(t.Context(), "umount", folder+"/mounted").CombinedOutput(); err != nil {
		t.Errorf("%v %s", err, out)
	}
	remove(t, c, "privileged", 0)
}
