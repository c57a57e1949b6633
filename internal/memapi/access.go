// SPDX-License-Identifier: Apache-2.0

package memapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// Fate is the fault of a request. The zero value is none: it is carried out and answered at once.
type Fate struct {
	// After delays the request, and with it the answer.
	After time.Duration
	// Refuse fails it with this status before it is carried out; zero does not.
	Refuse int
	// Lose breaks the connection before it is carried out, LoseAnswer after that.
	Lose, LoseAnswer bool
	// Late carries a lost request out after this time; zero does not carry it out at all.
	Late time.Duration
}

// Faults inject faults between a client and the server. Nil fields inject none. The functions must be safe for
// concurrent use.
type Faults struct {
	// Request decides about a request, by its verb as in a rule of rights, and its resource.
	Request func(verb, resource string) Fate
	// Event returns the delay of a watch event, or breaks the watch instead.
	Event func() (late time.Duration, lost bool)
}

func (f *Faults) event() (time.Duration, bool) {
	if f == nil || f.Event == nil {
		return 0, false
	}
	return f.Event()
}

func (f *Faults) request(verb, resource string) Fate {
	if f == nil || f.Request == nil {
		return Fate{}
	}
	return f.Request(verb, resource)
}

// errCut is the error of a disconnected client, errLost that of a broken connection.
var (
	errCut  = errors.New("memapi: the API server cannot be reached")
	errLost = errors.New("memapi: the connection broke")
)

// Access connects a client to the server. It is an http.RoundTripper, safe for concurrent use.
type Access struct {
	server *Server
	name   string

	mu    sync.Mutex
	wrong *Faults // guarded by mu
	cut   bool    // guarded by mu
}

// Access returns the connection of the named client.
func (s *Server) Access(name string) *Access { return &Access{server: s, name: name} }

// Config returns the configuration of clients with this connection.
func (a *Access) Config() *rest.Config {
	return &rest.Config{
		Host: "http://memory", Transport: a, UserAgent: a.name, QPS: -1,
		ContentConfig: rest.ContentConfig{ContentType: "application/json"},
	}
}

// SetFaults replaces the faults; nil injects none.
func (a *Access) SetFaults(f *Faults) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.wrong = f
}

func (a *Access) faults() *Faults {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.wrong
}

// Cut disconnects the client, or reconnects it. Watches break.
func (a *Access) Cut(cut bool) {
	a.mu.Lock()
	a.cut = cut
	a.mu.Unlock()
	if cut {
		a.BreakWatches()
	}
}

// BreakWatches ends all watches of the client; their undelivered events are lost.
func (a *Access) BreakWatches() {
	a.server.mu.Lock()
	defer a.server.mu.Unlock()
	for w := range a.server.watches {
		if w.access == a {
			w.close()
		}
	}
}

func (a *Access) isCut() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.cut
}

// RoundTrip implements http.RoundTripper.
func (a *Access) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := bodyOf(req)
	if err != nil {
		return nil, err
	}
	c := &call{Access: a, req: req, body: body}
	if err := c.parse(); err != nil {
		return c.failed(err), nil
	}
	a.server.requests.Add(1)
	var fate Fate
	if !c.discovery { // clients hold locks over it, under which a bubble's time does not pass
		fate = a.faults().request(c.verb, c.resource)
	}
	if err := pause(req.Context(), fate.After); err != nil {
		return nil, err
	}
	switch {
	case a.isCut():
		return nil, errCut
	case fate.Refuse != 0:
		return c.failed(apierrors.NewGenericServerResponse(fate.Refuse, c.verb, schema.GroupResource{Resource: c.resource}, "", "by chance", 0, false)), nil
	case fate.Lose:
		c.later(fate.Late)
		return nil, errLost
	}
	answer := c.carryOut()
	if fate.LoseAnswer || a.isCut() {
		return nil, errors.Join(errLost, answer.Body.Close())
	}
	return answer, nil
}

func bodyOf(req *http.Request) ([]byte, error) {
	if req.Body == nil {
		return nil, nil
	}
	body, err := io.ReadAll(req.Body)
	return body, errors.Join(err, req.Body.Close())
}

// later carries out a lost request after a delay, never if that is zero.
func (c *call) later(after time.Duration) {
	if after <= 0 || c.verb == "watch" {
		return
	}
	late := *c
	late.req = c.req.WithContext(context.WithoutCancel(c.req.Context()))
	time.AfterFunc(after, func() { _ = late.carryOut().Body.Close() }) // of what is in memory
}

func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// call is one request under way.
type call struct {
	*Access
	req            *http.Request
	body           []byte
	verb, resource string
	discovery      bool
	request
}

// parse parses the URL.
func (c *call) parse() error {
	words := strings.Split(strings.Trim(c.req.URL.Path, "/"), "/")
	c.verb = strings.ToLower(c.req.Method)
	group, rest := words[:1], words[1:]
	n := 1 // of words that name the version
	if group[0] == "apis" {
		n = 2
	}
	if len(rest) <= n {
		c.discovery, c.resource = true, strings.Join(words, "/")
		return nil
	}
	gv := schema.GroupVersion{Version: rest[n-1]}
	if n == 2 {
		gv.Group = rest[0]
	}
	rest = rest[n:]
	if rest[0] == "namespaces" && len(rest) > 2 {
		c.key.namespace, rest = rest[1], rest[2:]
	}
	c.resource = rest[0]
	if c.table = c.server.tables[gv.WithResource(rest[0])]; c.table == nil {
		return apierrors.NewGenericServerResponse(http.StatusNotFound, c.verb, schema.GroupResource{Group: gv.Group, Resource: rest[0]}, "", "no such kind", 0, true)
	}
	if len(rest) > 1 {
		c.key.name = rest[1]
	}
	if len(rest) > 2 {
		c.part = rest[2]
	}
	c.by, c.request.body = c.name, c.body
	c.media, _, _ = strings.Cut(c.req.Header.Get("Content-Type"), ";")
	c.verb = c.verbOf()
	return nil
}

func (c *call) verbOf() string {
	switch c.req.Method {
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		return "delete"
	}
	if c.key.name != "" {
		return "get"
	}
	if w := c.req.URL.Query().Get("watch"); w == "true" || w == "1" {
		return "watch"
	}
	return "list"
}

// carryOut carries out the request.
func (c *call) carryOut() *http.Response {
	if c.discovery {
		return c.discover()
	}
	sel, err := c.selection()
	if err != nil {
		return c.failed(err)
	}
	if c.part != "" && (c.part != "status" || !c.table.kind.Status) {
		return c.failed(apierrors.NewNotFound(c.groupResource(), c.key.name))
	}
	switch c.verb {
	case "list":
		return c.answer(http.StatusOK, c.server.list(sel))
	case "watch":
		return c.watch(sel)
	}
	o, err := c.one()
	if err != nil {
		return c.failed(err)
	}
	status := http.StatusOK
	if c.verb == "create" {
		status = http.StatusCreated
	}
	return c.answer(status, sel.text(o))
}

// one carries out a request for one object.
func (c *call) one() (*stored, error) {
	switch c.verb {
	case "create":
		return c.server.create(&c.request)
	case "update":
		return c.server.update(&c.request, c.replacing())
	case "patch":
		return c.server.update(&c.request, c.patching())
	case "delete":
		return c.server.remove(&c.request)
	}
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	return c.server.lockedGet(&c.request)
}

func (c *call) selection() (selection, error) {
	q := c.req.URL.Query()
	s := selection{table: c.table, namespace: c.key.namespace, brief: strings.Contains(c.req.Header.Get("Accept"), "as=PartialObjectMetadata")}
	var err error
	if s.labels, err = labels.Parse(q.Get("labelSelector")); err != nil {
		return s, apierrors.NewBadRequest(err.Error())
	}
	if s.fields, err = fields.ParseSelector(q.Get("fieldSelector")); err != nil {
		return s, apierrors.NewBadRequest(err.Error())
	}
	return s, nil
}

func (c *call) watch(sel selection) *http.Response {
	q := c.req.URL.Query()
	seconds, _ := strconv.Atoi(q.Get("timeoutSeconds")) // none: no end
	body, err := c.server.open(c.req.Context(), c.Access, sel, watchOptions{
		from: q.Get("resourceVersion"), initial: q.Get("sendInitialEvents") == "true", within: time.Duration(seconds) * time.Second,
	})
	if err != nil {
		return c.failed(err)
	}
	return c.response(http.StatusOK, body)
}

// failed returns the response of an error.
func (c *call) failed(err error) *http.Response {
	status := apierrors.NewInternalError(err).Status()
	if s := apierrors.APIStatus(nil); errors.As(err, &s) {
		status = s.Status()
	}
	status.APIVersion, status.Kind = "v1", "Status"
	text, _ := json.Marshal(status) // strings and numbers alone: never fails
	return c.answer(int(status.Code), text)
}

func (c *call) answer(status int, text []byte) *http.Response {
	return c.response(status, io.NopCloser(bytes.NewReader(text)))
}

func (c *call) response(status int, body io.ReadCloser) *http.Response {
	return &http.Response{
		Status: fmt.Sprintf("%d %s", status, http.StatusText(status)), StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: body, ContentLength: -1, Request: c.req,
	}
}
