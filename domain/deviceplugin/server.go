// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"context"
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
	// load is called before an allocation; nil if not needed.
	load func() error

	mu sync.Mutex
	// healthy and ended determine the next list; changed is closed when either changes.
	healthy bool
	ended   bool
	changed chan struct{}
	// watching is the number of streams that have sent a list.
	watching int
}

func newPluginServer(d Device, healthy bool, load func() error) *pluginServer {
	return &pluginServer{device: d, healthy: healthy, load: load, changed: make(chan struct{})}
}

// setHealthy sets the health, and makes all streams send the list again if it has changed.
func (s *pluginServer) setHealthy(healthy bool) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.healthy == healthy || s.ended {
		return false
	}
	s.healthy = healthy
	s.lockedNotify()
	return true
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
	list = &kubelet.ListAndWatchResponse{}
	if s.ended {
		return list, s.changed, true
	}
	health := kubelet.Unhealthy
	if s.healthy {
		health = kubelet.Healthy
	}
	for i := range s.device.Slots {
		list.Devices = append(list.Devices, &kubelet.Device{ID: s.device.slot(i), Health: health})
	}
	return list, s.changed, false
}

// count adds n to the number of streams that have sent a list.
func (s *pluginServer) count(n int) {
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
			s.count(1)
			defer s.count(-1)
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		}
	}
}

// Allocate returns the device nodes for each container.
func (s *pluginServer) Allocate(_ context.Context, req *kubelet.AllocateRequest) (*kubelet.AllocateResponse, error) {
	out := &kubelet.AllocateResponse{}
	for _, container := range req.GetContainerRequests() {
		if err := s.check(container.GetDevicesIds()); err != nil {
			return nil, err
		}
		answer := &kubelet.ContainerAllocateResponse{}
		for _, n := range s.device.Nodes {
			answer.Devices = append(answer.Devices, &kubelet.DeviceSpec{ContainerPath: n, HostPath: n, Permissions: s.device.Permissions})
		}
		out.ContainerResponses = append(out.ContainerResponses, answer)
	}
	if s.load != nil {
		if err := s.load(); err != nil {
			return nil, status.Errorf(codes.Unavailable, "%s is not usable: %v", s.device.Resource(), err)
		}
	}
	return out, nil
}

// PreStartContainer only makes the checks of Allocate.
func (s *pluginServer) PreStartContainer(_ context.Context, req *kubelet.PreStartContainerRequest) (*kubelet.PreStartContainerResponse, error) {
	return &kubelet.PreStartContainerResponse{}, s.check(req.GetDevicesIds())
}

// check rejects unknown slot IDs, and a device that is not available.
func (s *pluginServer) check(ids []string) error {
	seen := map[string]bool{}
	for _, id := range ids {
		if !s.device.has(id) || seen[id] {
			return status.Errorf(codes.InvalidArgument, "unknown or duplicate device ID %q for %s", id, s.device.Resource())
		}
		seen[id] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case len(ids) == 0:
		return status.Errorf(codes.InvalidArgument, "no device IDs requested for %s", s.device.Resource())
	case s.ended:
		return status.Errorf(codes.Unavailable, "%s is being withdrawn", s.device.Resource())
	case !s.healthy:
		return status.Errorf(codes.FailedPrecondition, "%s is not available on this node", s.device.Resource())
	}
	return nil
}
