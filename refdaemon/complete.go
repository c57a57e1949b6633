// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Limits of a completion, which is interactive.
const (
	completing = 5 * time.Second
	completed  = 500
)

// lists maps the kinds of "refdaemon explain" and "refdaemon plan" to the lists that hold their objects.
var lists = map[string]func() client.ObjectList{
	"vm":        func() client.ObjectList { return &v1.VirtualMachineList{} },
	"vmi":       func() client.ObjectList { return &v1.VirtualMachineInstanceList{} },
	"migration": func() client.ObjectList { return &v1.VirtualMachineInstanceMigrationList{} },
	"node":      func() client.ObjectList { return &corev1.NodeList{} },
	"drain":     func() client.ObjectList { return &corev1.NodeList{} },
}

// complete completes a word, and after it the names of the objects it is about, of the cluster or of the dump that
// the flags name. A cluster that cannot be read completes nothing.
func (o *observer) complete(words ...string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return words, cobra.ShellCompDirectiveNoFileComp
		}
		list := lists[args[0]]
		if len(args) > 1 || list == nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names, err := o.names(cmd, list())
		if err != nil {
			cobra.CompDebugln(err.Error(), false)
			return nil, cobra.ShellCompDirectiveError
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// names lists objects by namespace and name.
func (o *observer) names(cmd *cobra.Command, list client.ObjectList) ([]string, error) {
	ctrl.SetLogger(logr.Discard())
	var err error
	if o.config, err = load(cmd, o.source); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completing)
	defer cancel()
	var reader client.Reader
	if o.dump != "" {
		reader, err = o.file()
	} else {
		reader, err = o.live()
	}
	if err != nil {
		return nil, err
	}
	if err := reader.List(ctx, list, client.Limit(completed)); err != nil {
		return nil, err
	}
	var names []string
	err = meta.EachListItem(list, func(object runtime.Object) error {
		a, err := meta.Accessor(object)
		if err == nil {
			names = append(names, strings.TrimPrefix(a.GetNamespace()+"/"+a.GetName(), "/"))
		}
		return err
	})
	return names, err
}
