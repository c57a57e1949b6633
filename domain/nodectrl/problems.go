// SPDX-License-Identifier: Apache-2.0

package nodectrl

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ProblemsAnnotation holds, on a Node, what its agent misses there, as a JSON list of [Problem]; there is none while nothing is
// missing.
const ProblemsAnnotation = "virtloom.dev/problems"

// longestProblems is the size, in bytes, of an annotation that is parsed.
const longestProblems = 16 << 10

// eventUnfit is the reason of the event for a node whose problems have changed.
const eventUnfit = "NodeNotFitForVMIs"

// Problem is something that a node lacks, without which it runs no VMIs.
type Problem struct {
	// Code names it, in CamelCase.
	Code string `json:"code"`
	// What says what is missing, and Remedy how to provide it.
	What   string `json:"what"`
	Remedy string `json:"remedy"`
}

// ProblemsOf returns what the agent of a node reports.
func ProblemsOf(node *corev1.Node) ([]Problem, error) {
	text, found := node.Annotations[ProblemsAnnotation]
	if !found {
		return nil, nil
	}
	if len(text) > longestProblems {
		return nil, fmt.Errorf("nodectrl: annotation %s of node %s has %d bytes, more than %d", ProblemsAnnotation, node.Name, len(text), longestProblems)
	}
	var all []Problem
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, fmt.Errorf("nodectrl: annotation %s of node %s: %w", ProblemsAnnotation, node.Name, err)
	}
	return all, nil
}

// look calls Check, and returns the change of the annotation; nil where nothing is checked.
func (h *Heartbeat) look(ctx context.Context) (fit bool, annotation map[string]*string) {
	if h.Check == nil {
		return true, nil
	}
	problems := h.Check(ctx)
	var value *string
	if len(problems) > 0 {
		text, err := json.Marshal(problems)
		if err != nil {
			complain(ctx, err)
		}
		value = new(string(text))
	}
	if len(problems) > 0 && !slices.Equal(problems, h.problems) && h.Recorder != nil {
		var all []string
		for _, p := range problems {
			all = append(all, p.What+" ("+p.Remedy+")")
		}
		// Kubelets' events about their node name it in place of the UID as well.
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: h.NodeName, UID: types.UID(h.NodeName)}}
		h.Recorder.Eventf(node, nil, corev1.EventTypeWarning, eventUnfit, "Check", "%s", strings.Join(all, "; "))
	}
	h.problems = problems
	return len(problems) == 0, map[string]*string{ProblemsAnnotation: value}
}
