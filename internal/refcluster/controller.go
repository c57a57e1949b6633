// SPDX-License-Identifier: Apache-2.0

package refcluster

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/virtloom/virtloom/internal/rig"
)

// readyWithin bounds the start of a controller.
const readyWithin = 5 * time.Minute

// ControllerOptions say which controller to run.
type ControllerOptions struct {
	// Name is that of its log, Program the path of refdaemon.
	Name, Program string
	// Profiles has it offer profiles.
	Profiles bool
	// Args are further arguments of refdaemon controller.
	Args []string
}

// Controller is a "refdaemon controller" of a rig, with the means to look into it.
type Controller struct {
	*rig.Program
	// ReadyIn is how long it took to be ready, with all caches filled.
	ReadyIn time.Duration

	health, metrics, profiling string
}

// RunController starts a controller and waits until it is ready.
func RunController(ctx context.Context, r *rig.Rig, o ControllerOptions) (*Controller, error) {
	ports, err := rig.FreePorts(3)
	if err != nil {
		return nil, err
	}
	c := &Controller{health: "127.0.0.1:" + ports[0], metrics: "127.0.0.1:" + ports[1]}
	args := []string{
		"controller", "--kubeconfig", r.Kubeconfig(rig.UserController), "--leader-elect=false",
		"--health-address", c.health, "--metrics-address", c.metrics,
	}
	if o.Profiles {
		c.profiling = "127.0.0.1:" + ports[2]
		args = append(args, "--profiling-address", c.profiling)
	}
	begun := time.Now()
	if c.Program, err = r.Run(o.Name, exec.Command(o.Program, append(args, o.Args...)...)); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, readyWithin, fmt.Errorf("not ready after %s", readyWithin))
	defer cancel()
	err = wait.PollUntilContextCancel(ctx, 10*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		select {
		case <-c.Done():
			return false, c.Ended()
		default:
		}
		_, err := httpGet(ctx, "http://"+c.health+"/readyz")
		return err == nil, nil
	})
	if err != nil {
		return nil, fmt.Errorf("start the controller: %w (log %s)", err, c.Log())
	}
	c.ReadyIn = time.Since(begun)
	return c, nil
}

// httpGet asks for url and expects 200.
func httpGet(ctx context.Context, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, answer.Status)
	}
	return body, err
}

// Profiles reports whether the controller offers profiles.
func (c *Controller) Profiles() bool { return c.profiling != "" }

// Profile returns a profile, such as "heap?gc=1", which collects garbage first.
func (c *Controller) Profile(ctx context.Context, what string) ([]byte, error) {
	return httpGet(ctx, "http://"+c.profiling+"/debug/pprof/"+what)
}

// Metrics returns the controller's metrics by name, each summed over its labels.
func (c *Controller) Metrics(ctx context.Context) (map[string]float64, error) {
	text, err := httpGet(ctx, "http://"+c.metrics+"/metrics")
	if err != nil {
		return nil, fmt.Errorf("metrics of the controller: %w", err)
	}
	return sums(text)
}

// sums adds metrics up over their labels.
func sums(text []byte) (map[string]float64, error) {
	out := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0][0] == '#' {
			continue
		}
		name, _, _ := strings.Cut(words[0], "{")
		value, err := strconv.ParseFloat(words[len(words)-1], 64)
		if err != nil {
			return nil, fmt.Errorf("metrics of the controller: %q: %w", line, err)
		}
		out[name] += value
	}
	return out, nil
}
