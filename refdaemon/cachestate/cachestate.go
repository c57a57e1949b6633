// SPDX-License-Identifier: Apache-2.0

// Package cachestate reports a controller's view of an object: which version its cache has, and which of its own
// writes the cache has not observed yet. Only the controller knows that, and it explains why a controller
// waits.
//
// A [Handler] is served with the controller's metrics, to those who may read them; [Client.Ask] asks it.
package cachestate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/expectations"
)

// Path is the path of a Handler.
const Path = "/debug/cachestate"

// Kind is a kind of object that can be asked about.
type Kind string

// The kinds.
const (
	Machine   Kind = "vm"
	VMI       Kind = "vmi"
	Migration Kind = "migration"
	Node      Kind = "node"
)

// names are the kinds of the API.
var names = map[Kind]string{Machine: "VirtualMachine", VMI: "VirtualMachineInstance", Migration: "VirtualMachineInstanceMigration", Node: "Node"}

// Question identifies the object to report.
type Question struct {
	// Kind is its kind; NamespacedName names it.
	Kind Kind
	types.NamespacedName
}

// State is a controller's view of an object.
type State struct {
	// At is the time of the controller, Leads is true if it is the leader.
	At    time.Time `json:"at"`
	Leads bool      `json:"leads"`
	// Objects are the object and its dependents, as cached.
	Objects []Object `json:"objects,omitempty"`
	// Pending are writes that the cache has not observed yet, the oldest first.
	Pending []Write `json:"unseen,omitempty"`
	// Settings are the settings that the controller decides by, by flag.
	Settings map[string]string `json:"settings,omitempty"`
}

// Object is an object in a cache.
type Object struct {
	// Kind and Name name it, the latter with its namespace.
	Kind string `json:"kind"`
	Name string `json:"name"`
	// ResourceVersion is the version.
	ResourceVersion string `json:"resourceVersion"`
}

// Write is a write that the cache has not observed yet.
type Write struct {
	// Text describes the write and the missing observation; Since is the time of the write.
	Text  string    `json:"text"`
	Since time.Time `json:"since"`
	// Problem is the reason why waiting cannot succeed; empty if it can.
	Problem string `json:"problem,omitempty"`
}

// Handler serves a controller's view. It is safe for concurrent use.
type Handler struct {
	// Cache is the controller's.
	Cache client.Reader
	// Elected is closed once it leads.
	Elected <-chan struct{}
	// Pending returns the unobserved writes for objects, by kind.
	Pending map[Kind]func(types.NamespacedName) []expectations.Pending
	// Settings returns the settings in force that the controller decides by, by flag; nil if there are none.
	Settings func() map[string]string
	// Clock is the clock of the controller.
	Clock clock.PassiveClock
}

// ServeHTTP answers GET with the parameters kind, namespace and name.
func (h *Handler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodGet {
		http.Error(w, "only GET is supported", http.StatusMethodNotAllowed)
		return
	}
	p := req.URL.Query()
	q := Question{Kind: Kind(p.Get("kind")), NamespacedName: types.NamespacedName{Namespace: p.Get("namespace"), Name: p.Get("name")}}
	if err := q.validate(); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s := State{At: h.Clock.Now().UTC()}
	select {
	case <-h.Elected:
		s.Leads = true
	default:
	}
	if unseen := h.Pending[q.Kind]; unseen != nil {
		for _, u := range unseen(q.NamespacedName) {
			s.Pending = append(s.Pending, Write{Text: u.String(), Since: u.Since.UTC(), Problem: string(u.Problem)})
		}
	}
	if h.Settings != nil {
		s.Settings = h.Settings()
	}
	var err error
	if s.Objects, err = Versions(req.Context(), h.Cache, q); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(s) // the client may have disconnected
}

func (q Question) validate() error {
	switch {
	case names[q.Kind] == "":
		return fmt.Errorf("unknown kind %q; use one of %s, %s, %s, %s", q.Kind, Machine, VMI, Migration, Node)
	case q.Name == "":
		return errors.New("name is required")
	case (q.Kind == Node) != (q.Namespace == ""):
		return errors.New("a namespace is required for VirtualMachines, VMIs and migrations, and forbidden for nodes")
	}
	return nil
}

// Versions returns the versions of the object, and of the Pods of a VMI. Absent objects are left out.
func Versions(ctx context.Context, c client.Reader, q Question) ([]Object, error) {
	switch q.Kind {
	case Node:
		// Metadata only, as the VMI controller watches them.
		o := &metav1.PartialObjectMetadata{}
		o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
		return versions(ctx, c, q, o)
	case Migration:
		return versions(ctx, c, q, &v1.VirtualMachineInstanceMigration{})
	case Machine:
		return versions(ctx, c, q, &v1.VirtualMachine{})
	}
	g := &v1.VirtualMachineInstance{}
	all, err := versions(ctx, c, q, g)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	var pods corev1.PodList
	if err := c.List(ctx, &pods, client.InNamespace(q.Namespace), client.MatchingLabels{v1.CreatedByLabel: string(g.UID)}); err != nil {
		return nil, fmt.Errorf("list the Pods of %s: %w", q.NamespacedName, err)
	}
	for i := range pods.Items {
		all = append(all, object("Pod", &pods.Items[i]))
	}
	return all, nil
}

func versions(ctx context.Context, c client.Reader, q Question, o client.Object) ([]Object, error) {
	switch err := c.Get(ctx, q.NamespacedName, o); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read %s %s: %w", q.Kind, strings.TrimPrefix(q.String(), "/"), err)
	}
	return []Object{object(names[q.Kind], o)}, nil
}

func object(kind string, o client.Object) Object {
	return Object{Kind: kind, Name: strings.TrimPrefix(client.ObjectKeyFromObject(o).String(), "/"), ResourceVersion: o.GetResourceVersion()}
}

// String returns the name of the object.
func (q Question) String() string { return q.NamespacedName.String() }

// Client asks a controller for its view. It is safe for concurrent use.
type Client struct {
	// HTTP sends the request; URL is the address of the controller's metrics, with or without their path.
	HTTP *http.Client
	URL  string
	// Token is the bearer token for the controller; empty sends none.
	Token string
}

// most is the maximum size of an answer, and shown the length of the excerpt of an invalid one.
const (
	most  = 1 << 20
	shown = 200
)

// Ask returns the controller's view of an object.
func (c *Client) Ask(ctx context.Context, q Question) (*State, error) {
	u, err := url.Parse(c.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("%q is not the URL of a controller, such as http://localhost:8080", c.URL)
	}
	u.Path = strings.TrimSuffix(strings.TrimSuffix(u.Path, "/metrics"), "/") + Path
	u.RawQuery = url.Values{"kind": {string(q.Kind)}, "namespace": {q.Namespace}, "name": {q.Name}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	if c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	resp, err := c.HTTP.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, most))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %s: %s", u.Host, resp.Status, strings.TrimSpace(string(text[:min(len(text), shown)])))
	}
	s := &State{}
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("%s returned an invalid answer: %w", u.Host, err)
	}
	return s, nil
}
