// SPDX-License-Identifier: Apache-2.0

package memapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// selection selects the objects of a list or a watch, and their representation.
type selection struct {
	table     *table
	namespace string
	labels    labels.Selector
	fields    fields.Selector
	brief     bool
}

func (s *selection) selects(k key, o *stored) bool {
	return o != nil && (s.namespace == "" || s.namespace == k.namespace) && s.labels.Matches(labels.Set(o.labels)) &&
		s.fields.Matches(fields.Set{"metadata.name": k.name, "metadata.namespace": k.namespace, "spec.nodeName": o.node})
}

func (s *selection) text(o *stored) []byte {
	if s.brief {
		return o.brief
	}
	return o.text
}

// watch is an open watch: the queue of its undelivered events, until it is closed.
type watch struct {
	selection
	access *Access

	mu      sync.Mutex
	news    *sync.Cond
	pending [][]byte // guarded by mu
	closed  bool     // guarded by mu
}

// offer takes a change up, if it concerns the watch.
func (w *watch) offer(c change) {
	if c.kind != w.table.kind {
		return
	}
	was, is := w.selects(c.key, c.was), w.selects(c.key, c.is)
	switch {
	case is && was:
		w.add("MODIFIED", w.text(c.is))
	case is:
		w.add("ADDED", w.text(c.is))
	case was && c.is != nil: // it left the selection: the old object, as of now
		w.add("DELETED", w.text(c.was.at(c.version)))
	case was:
		w.add("DELETED", w.text(c.was))
	}
}

// at is the object as of another version.
func (o *stored) at(version uint64) *stored {
	was, is := fmt.Appendf(nil, `"resourceVersion":"%d"`, o.version), fmt.Appendf(nil, `"resourceVersion":"%d"`, version)
	return &stored{version: version, text: bytes.Replace(o.text, was, is, 1), brief: bytes.Replace(o.brief, was, is, 1)}
}

func (w *watch) add(kind string, text []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pending = append(w.pending, fmt.Appendf(nil, `{"type":%q,"object":%s}`+"\n", kind, text))
	w.news.Signal()
}

// next waits for the next event; false if there is none any more.
func (w *watch) next() ([]byte, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.pending) == 0 && !w.closed {
		w.news.Wait()
	}
	if w.closed { // undelivered events are lost
		return nil, false
	}
	e := w.pending[0]
	w.pending = w.pending[1:]
	return e, true
}

func (w *watch) isClosed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.closed
}

func (w *watch) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.news.Broadcast()
}

// watchOptions are what a client says of a watch.
type watchOptions struct {
	from    string
	initial bool
	within  time.Duration
}

// open begins a watch and returns its stream of events.
func (s *Server) open(ctx context.Context, a *Access, sel selection, o watchOptions) (io.ReadCloser, error) {
	w := &watch{selection: sel, access: a}
	w.news = sync.NewCond(&w.mu)
	s.mu.Lock()
	err := s.lockedCatchUp(w, o)
	if err == nil {
		s.watches[w] = struct{}{}
	}
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	from, to := io.Pipe()
	stop := context.AfterFunc(ctx, w.close)
	var end *time.Timer
	if o.within > 0 {
		end = time.AfterFunc(o.within, w.close)
	}
	go func() {
		w.run(to)
		stop()
		if end != nil {
			end.Stop()
		}
		s.mu.Lock()
		delete(s.watches, w)
		s.mu.Unlock()
	}()
	return &stream{from, w}, nil
}

// stream is the client's end of a watch.
type stream struct {
	*io.PipeReader
	w *watch
}

// Close ends the watch.
func (s *stream) Close() error {
	s.w.close()
	return s.PipeReader.Close()
}

// run delivers the queued events, delayed by the client's faults.
func (w *watch) run(to *io.PipeWriter) {
	defer func() { _ = to.Close() }() // never fails
	for {
		e, more := w.next()
		if !more {
			return
		}
		late, lost := w.access.faults().event()
		if late > 0 {
			time.Sleep(late)
		}
		if lost || w.isClosed() {
			w.close()
			return
		}
		if _, err := to.Write(e); err != nil {
			w.close()
			return
		}
	}
}

// lockedCatchUp adds the events since the client's version, or all objects.
func (s *Server) lockedCatchUp(w *watch, o watchOptions) error {
	if o.initial || o.from == "" || o.from == "0" {
		for k, is := range w.table.objects {
			if w.selects(k, is) {
				w.add("ADDED", w.text(is))
			}
		}
		if o.initial {
			w.add("BOOKMARK", s.lockedBookmark(w))
		}
		return nil
	}
	from, err := strconv.ParseUint(o.from, 10, 64)
	if err != nil {
		return apierrors.NewBadRequest("resourceVersion " + o.from)
	}
	if from < s.dropped {
		return apierrors.NewResourceExpired("too old resource version")
	}
	for _, c := range s.history {
		if c.version > from {
			w.offer(c)
		}
	}
	return nil
}

// lockedBookmark queues a bookmark: all earlier events are delivered.
func (s *Server) lockedBookmark(w *watch) []byte {
	k := w.table.kind
	version, kind := k.GroupVersion().String(), k.Kind
	if w.brief {
		version, kind = "meta.k8s.io/v1", "PartialObjectMetadata"
	}
	text, _ := json.Marshal(map[string]any{ // strings alone: never fails
		"apiVersion": version, "kind": kind, "metadata": map[string]any{
			"resourceVersion": strconv.FormatUint(s.version, 10),
			"annotations":     map[string]any{metav1.InitialEventsAnnotationKey: "true"},
		},
	})
	return text
}

// list returns all objects of a selection.
func (s *Server) list(sel selection) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := sel.table.kind
	version, kind := k.GroupVersion().String(), k.Kind+"List"
	if sel.brief {
		version, kind = "meta.k8s.io/v1", "PartialObjectMetadataList"
	}
	out := fmt.Appendf(nil, `{"apiVersion":%q,"kind":%q,"metadata":{"resourceVersion":"%d"},"items":[`, version, kind, s.version)
	first := true
	for k, o := range sel.table.objects {
		if !sel.selects(k, o) {
			continue
		}
		if !first {
			out = append(out, ',')
		}
		first = false
		out = append(out, sel.text(o)...)
	}
	return append(out, "]}"...)
}
