// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// Request is a request to the API server in the audit log.
type Request struct {
	Verb string `json:"verb"`
	// URI is the path and what is asked beside it.
	URI       string `json:"requestURI"`
	ObjectRef struct {
		Resource, Subresource, Namespace, Name string
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	User struct {
		Username string `json:"username"`
		Extra    struct {
			// Pods names the Pod that the token of a service account is bound to; empty for other users.
			Pods []string `json:"authentication.kubernetes.io/pod-name"`
		} `json:"extra"`
	} `json:"user"`
	// Received is when the API server got the request. Requests of which one waited for
	// the answer to the other are received in that order, whatever the order of the log.
	Received time.Time `json:"requestReceivedTimestamp"`
	// Answered is when the API server had done what it was asked for.
	Answered time.Time `json:"stageTimestamp"`
	// RequestObject is the body of a request that creates a Pod, ResponseObject the
	// answer to one that writes a guest or a migration; empty for all others.
	RequestObject, ResponseObject json.RawMessage
}

// Accepted reports whether the API server carried out the request.
func (q Request) Accepted() bool { return q.ResponseStatus.Code < 300 }

// DryRun reports whether the request was a dry run.
func (q Request) DryRun() bool { return strings.Contains(q.URI, "dryRun=") }

// ReadOnly reports whether the request changes nothing.
func (q Request) ReadOnly() bool { return q.Verb == "get" || q.Verb == "list" || q.Verb == "watch" }

// What is the verb and the kind of object: "create pods", "patch pods/status".
func (q Request) What() string {
	s := q.Verb + " " + q.ObjectRef.Resource
	if q.ObjectRef.Subresource != "" {
		s += "/" + q.ObjectRef.Subresource
	}
	return s
}

// audited is what has been read of the audit log so far. A log of thousands of requests is asked for again and again while a test
// waits, so no line is parsed twice.
type audited struct {
	sync.Mutex
	offset   int64
	requests []Request
}

// Requests reads the audit log: every request that was answered before the
// call, in the order of the answers. The requests are not to be changed; calls may be concurrent.
func (r *Rig) Requests() ([]Request, error) {
	a := &r.audited
	a.Lock()
	defer a.Unlock()
	if err := a.readOn(r.auditLog()); err != nil {
		return nil, fmt.Errorf("rig: read the audit log: %w", err)
	}
	return a.requests[:len(a.requests):len(a.requests)], nil
}

// readOn reads the lines that have been added to the log. One without its end is still being written.
func (a *audited) readOn(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if _, err := f.Seek(a.offset, io.SeekStart); err != nil {
		return err
	}
	for lines := bufio.NewReader(f); ; {
		line, err := lines.ReadBytes('\n')
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		var q Request
		if err := json.Unmarshal(line, &q); err != nil {
			return fmt.Errorf("at byte %d: %w", a.offset, err)
		}
		a.offset += int64(len(line))
		a.requests = append(a.requests, q)
	}
}
