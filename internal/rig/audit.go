// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
)

// longestRequest bounds a line of the audit log, in bytes.
const longestRequest = 16 << 20

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

// Requests reads the audit log: every request that was answered before the
// call, in the order of the answers.
func (r *Rig) Requests() ([]Request, error) {
	f, err := os.Open(r.auditLog())
	if err != nil {
		return nil, fmt.Errorf("rig: read the audit log: %w", err)
	}
	defer func() { _ = f.Close() }()
	var out []Request
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, longestRequest)
	for lines.Scan() {
		var q Request
		if json.Unmarshal(lines.Bytes(), &q) != nil {
			continue // the line being written
		}
		out = append(out, q)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("rig: read the audit log: %w", err)
	}
	return out, nil
}
