// SPDX-License-Identifier: Apache-2.0

package vmictrl_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
)

// notes records the writes of a controller and its events, in order. It is an
// events.EventRecorder.
type notes struct {
	mu    sync.Mutex
	lines []string // guarded by mu
}

func (n *notes) add(text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	// A pass may precede the cache's observation of a deletion, and repeat the request.
	if strings.Contains(text, " is answered 404\n") && slices.Contains(n.lines, text) {
		return
	}
	n.lines = append(n.lines, text)
}

// Eventf implements events.EventRecorder.
func (n *notes) Eventf(_, _ runtime.Object, kind, reason, _, note string, args ...any) {
	n.add(fmt.Sprintf("event %s %s: %s\n", kind, reason, fmt.Sprintf(note, args...)))
}

// wrap records the requests.
func (n *notes) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		if req.Method == http.MethodGet {
			return next.RoundTrip(req)
		}
		var body []byte
		if req.Body != nil {
			var err error
			if body, err = io.ReadAll(req.Body); err != nil {
				return nil, err
			}
			req = req.Clone(req.Context())
			req.Body = io.NopCloser(bytes.NewReader(body))
		}
		resp, err := next.RoundTrip(req)
		refused := ""
		if err == nil && resp.StatusCode >= http.StatusBadRequest {
			refused = fmt.Sprintf(" is answered %d", resp.StatusCode)
		}
		n.add(target(req) + refused + "\n" + indent(content(req, body)))
		return resp, err
	})
}

// target returns verb, resource, and name if there is one.
func target(req *http.Request) string {
	verb := map[string]string{
		http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete",
	}[req.Method]
	what := verb + " " + strings.Join(resourceIn(req.URL.Path), "/")
	if _, in, _ := strings.Cut(req.URL.Path, "/namespaces/"); strings.Count(in, "/") > 1 {
		what += " " + strings.Split(in, "/")[2]
	}
	return what
}

// content returns a body as lines.
func content(req *http.Request, body []byte) []string {
	switch req.Header.Get("Content-Type") {
	case "application/json-patch+json":
		return operations(body)
	case "application/strategic-merge-patch+json":
		return tree("", body)
	}
	o, _, err := clientgoscheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	switch o := o.(type) {
	case *corev1.Pod:
		return podLines(o)
	case *corev1.PersistentVolumeClaim:
		return append(metaLines(&o.ObjectMeta), fmt.Sprintf("class %s, %s, %s", *o.Spec.StorageClassName, o.Spec.AccessModes,
			o.Spec.Resources.Requests.Storage()))
	case *metav1.DeleteOptions:
		return deleteLines(o)
	}
	return []string{string(body), fmt.Sprint(err)}
}

func operations(body []byte) []string {
	var all []struct {
		Op, Path string
		Value    json.RawMessage
	}
	if err := json.Unmarshal(body, &all); err != nil {
		return []string{string(body)}
	}
	var lines []string
	for _, o := range all {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%-6s %s %s", o.Op, o.Path, o.Value)))
	}
	return lines
}

// tree returns a merge patch, one leaf per line.
func tree(at string, body []byte) []string {
	var members map[string]json.RawMessage
	if json.Unmarshal(body, &members) != nil || len(members) == 0 {
		return []string{strings.TrimPrefix(at, ".") + " " + string(body)}
	}
	var lines []string
	for _, key := range slices.Sorted(maps.Keys(members)) {
		if key == "uid" || key == "resourceVersion" || strings.HasPrefix(key, "$setElementOrder") {
			continue
		}
		lines = append(lines, tree(at+"."+key, members[key])...)
	}
	return lines
}

func metaLines(m *metav1.ObjectMeta) []string {
	lines := []string{"name " + m.Name}
	for _, o := range m.OwnerReferences {
		lines = append(lines, fmt.Sprintf("owner %s %s of UID %s, controller %t", o.Kind, o.Name, o.UID, o.Controller != nil && *o.Controller))
	}
	for _, key := range slices.Sorted(maps.Keys(m.Labels)) {
		lines = append(lines, "label "+key+"="+m.Labels[key])
	}
	for _, key := range slices.Sorted(maps.Keys(m.Annotations)) {
		if key != pokeAnnotation && !strings.Contains(key, "velero.io") { // those are long, and the same for all
			lines = append(lines, "annotation "+key+"="+m.Annotations[key])
		}
	}
	return lines
}

func podLines(p *corev1.Pod) []string {
	lines := metaLines(&p.ObjectMeta)
	for _, c := range p.Spec.Containers {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("container %s of %s: %s", c.Name, c.Image, strings.Join(c.Command, " "))))
	}
	for _, v := range p.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			lines = append(lines, "claim "+v.PersistentVolumeClaim.ClaimName)
		}
	}
	return lines
}

func deleteLines(o *metav1.DeleteOptions) []string {
	var lines []string
	if o.GracePeriodSeconds != nil {
		lines = append(lines, fmt.Sprintf("grace %d s", *o.GracePeriodSeconds))
	}
	if p := o.Preconditions; p != nil && p.UID != nil {
		lines = append(lines, fmt.Sprintf("only UID %s", *p.UID))
	}
	return lines
}

func indent(lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	return "  " + strings.Join(lines, "\n  ") + "\n"
}

// Parts that differ from run to run.
var (
	someTime  = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
	someUID   = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)
	someHash  = regexp.MustCompile(`\b(virt-launcher-guest|persistent-state-for-guest|hp-volume)-[a-z2-7]{10,20}\b`)
	someOwned = regexp.MustCompile(`\bowned-[ab]\b`) // deleted in any order
	someState = regexp.MustCompile(`(/metadata/resourceVersion) "\d+"`)
)

// text returns all notes, without the parts that differ from run to run. A rejected write is
// listed once, as it is retried in every pass.
func (c *watched) text() string {
	c.notes.mu.Lock()
	lines := slices.Clone(c.notes.lines)
	c.notes.mu.Unlock()
	names := []string{string(c.guest.UID), "UID-of-guest", c.ns, "NAMESPACE", nodeOf(c.world), "NODE", image, "IMAGE"}
	for _, p := range c.pods() {
		names = append(names, string(p.UID), "UID-of-"+p.Name)
	}
	replacer := strings.NewReplacer(names...)
	var listed []string
	for _, line := range lines {
		line = replacer.Replace(line)
		line = someTime.ReplaceAllString(line, "TIME")
		line = someUID.ReplaceAllString(line, "UID")
		line = someHash.ReplaceAllString(line, "$1-HASH")
		line = someOwned.ReplaceAllString(line, "OWNED")
		line = someState.ReplaceAllString(line, "$1 VERSION")
		if strings.Contains(line, " is answered ") && slices.Contains(listed, line) {
			continue
		}
		listed = append(listed, byPods(line))
	}
	if len(listed) == 0 {
		return "nothing\n"
	}
	return strings.Join(listed, "")
}

// byPods sorts the operations on activePods, which come in the order of UIDs.
func byPods(text string) string {
	lines := strings.SplitAfter(text, "\n")
	begin := 0
	for i, line := range lines {
		if strings.Contains(line, " /status/activePods/") {
			continue
		}
		slices.Sort(lines[begin:i])
		begin = i + 1
	}
	return strings.Join(lines, "")
}

// vmiName is the name of every row's VMI.
const vmiName = "guest"
