// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"context"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	kubelet "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// pluginServer implements the device plugin service for the kubelet.
type pluginServer struct {
	kubelet.UnimplementedDevicePluginServer

	device Device
	nodes  nodes

	mu sync.Mutex
	// units are the devices, by their order in states, which is the list for the kubelet. That and
	// ended determine the next list; changed is closed when either changes.
	units   []Unit
	states  []*kubelet.Device
	index   map[string]int
	ended   bool
	changed chan struct{}
	// watching is the number of streams that have sent a list.
	watching int
}

func newPluginServer(d Device, n nodes) *pluginServer {
	return &pluginServer{device: d, nodes: n, changed: make(chan struct{})}
}

// set sets the devices and their health, and makes all streams send the list again if it has
// changed.
func (s *pluginServer) set(units []Unit, missing map[string]bool) (changed bool) {
	states, index := make([]*kubelet.Device, len(units)), make(map[string]int, len(units))
	for i, u := range units {
		states[i], index[u.ID] = u.state(missing), i
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	changed = !s.ended && !slices.EqualFunc(s.states, states, sameState)
	s.units, s.states, s.index = units, states, index
	if changed {
		s.lockedNotify()
	}
	return changed
}

// count returns how many devices are healthy, of how many.
func (s *pluginServer) count() (healthy, all int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.states {
		if d.Health == kubelet.Healthy {
			healthy++
		}
	}
	return healthy, len(s.states)
}

// end makes all streams send an empty list and end.
func (s *pluginServer) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.ended = true
		s.lockedNotify()
	}
}

func (s *pluginServer) lockedNotify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// watched reports whether a kubelet has received a list and listens for the next one.
func (s *pluginServer) watched() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.watching > 0 && !s.ended
}

// list returns the current list, and a channel that is closed when the list changes.
func (s *pluginServer) list() (list *kubelet.ListAndWatchResponse, changed <-chan struct{}, last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return &kubelet.ListAndWatchResponse{}, s.changed, true
	}
	return &kubelet.ListAndWatchResponse{Devices: s.states}, s.changed, false // states are replaced, never changed
}

// watch adds n to the number of streams that have sent a list.
func (s *pluginServer) watch(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watching += n
}

// GetDevicePluginOptions reports that no call before the start of a container is needed.
func (s *pluginServer) GetDevicePluginOptions(context.Context, *kubelet.Empty) (*kubelet.DevicePluginOptions, error) {
	return &kubelet.DevicePluginOptions{}, nil
}

// ListAndWatch sends the list, now and whenever it changes.
func (s *pluginServer) ListAndWatch(_ *kubelet.Empty, stream grpc.ServerStreamingServer[kubelet.ListAndWatchResponse]) error {
	for first := true; ; first = false {
		list, changed, last := s.list()
		if err := stream.Send(list); err != nil {
			return err
		}
		if last {
			return nil
		}
		if first {
			s.watch(1)
			defer s.watch(-1)
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		}
	}
}

// Allocate returns the device nodes for each container, and the variables that say which devices
// they are.
func (s *pluginServer) Allocate(_ context.Context, req *kubelet.AllocateRequest) (*kubelet.AllocateResponse, error) {
	out := &kubelet.AllocateResponse{}
	for _, container := range req.GetContainerRequests() {
		units, err := s.allocated(container.GetDevicesIds())
		if err != nil {
			return nil, err
		}
		out.ContainerResponses = append(out.ContainerResponses, s.container(units))
	}
	if s.device.Open {
		if err := s.nodes.load(s.device.Nodes); err != nil {
			return nil, status.Errorf(codes.Unavailable, "%s is not usable: %v", s.device.Resource(), err)
		}
	}
	return out, nil
}

// container returns what one container gets.
func (s *pluginServer) container(units []Unit) *kubelet.ContainerAllocateResponse {
	answer := &kubelet.ContainerAllocateResponse{}
	for _, n := range paths(units) {
		answer.Devices = append(answer.Devices, &kubelet.DeviceSpec{ContainerPath: n, HostPath: n, Permissions: s.device.Permissions})
	}
	for _, u := range units {
		if u.Variable == "" {
			continue
		}
		if answer.Envs == nil {
			answer.Envs = map[string]string{}
		}
		value := strings.Join(u.Values, ",")
		if before := answer.Envs[u.Variable]; before != "" {
			value = before + "," + value
		}
		answer.Envs[u.Variable] = value
	}
	return answer
}

// PreStartContainer only makes the checks of Allocate.
func (s *pluginServer) PreStartContainer(_ context.Context, req *kubelet.PreStartContainerRequest) (*kubelet.PreStartContainerResponse, error) {
	_, err := s.allocated(req.GetDevicesIds())
	return &kubelet.PreStartContainerResponse{}, err
}

// allocated returns the devices of these IDs, in the order of the list. It rejects unknown IDs, and
// devices that are not available.
func (s *pluginServer) allocated(ids []string) ([]Unit, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var at []int
	healthy := true
	for _, id := range ids {
		i, known := s.index[id]
		if !known || slices.Contains(at, i) {
			return nil, status.Errorf(codes.InvalidArgument, "unknown or duplicate device ID %q for %s", id, s.device.Resource())
		}
		at = append(at, i)
		healthy = healthy && s.states[i].Health == kubelet.Healthy
	}
	switch {
	case len(ids) == 0:
		return nil, status.Errorf(codes.InvalidArgument, "no device IDs requested for %s", s.device.Resource())
	case s.ended:
		return nil, status.Errorf(codes.Unavailable, "%s is being withdrawn", s.device.Resource())
	case !healthy:
		return nil, status.Errorf(codes.FailedPrecondition, "%s is not available on this node", s.device.Resource())
	}
	slices.Sort(at)
	units := make([]Unit, len(at))
	for i, n := range at {
		units[i] = s.units[n]
	}
	return units, nil
}
