// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/launcher/launcherpb"
)

// chunk is the largest part of a console's stream in bytes.
const chunk = 32 << 10

// Console implements launcherpb.LauncherServer.
func (s service) Console(stream grpc.BidiStreamingServer[launcherpb.ConsoleRequest, launcherpb.ConsoleResponse]) error {
	o, err := servedAbility[domain.ConsoleOpener](s.Server, "console")
	if err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	open := first.GetOpen()
	if open == nil {
		return fmt.Errorf("console: the first message has to open it: %w", domain.ErrInvalid)
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	c, err := o.OpenConsole(ctx, open.Domain, open.Alias)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := stream.Send(&launcherpb.ConsoleResponse{Part: &launcherpb.ConsoleResponse_Opened{Opened: &launcherpb.Done{}}}); err != nil {
		return err
	}
	go typing(stream, c, cancel)
	return saying(c, stream)
}

// typing copies input to the console until the client stops sending; then the console ends as well.
func typing(stream grpc.BidiStreamingServer[launcherpb.ConsoleRequest, launcherpb.ConsoleResponse], c io.Writer, end func()) {
	defer end()
	for {
		m, err := stream.Recv()
		if err != nil {
			return
		}
		if _, err := c.Write(m.GetTyped()); err != nil {
			return
		}
	}
}

// saying copies the guest's output until its end.
func saying(c io.Reader, stream grpc.BidiStreamingServer[launcherpb.ConsoleRequest, launcherpb.ConsoleResponse]) error {
	buf := make([]byte, chunk)
	for {
		n, err := c.Read(buf)
		if n > 0 {
			said := &launcherpb.ConsoleResponse{Part: &launcherpb.ConsoleResponse_Said{Said: buf[:n]}}
			if err := stream.Send(said); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("console: %w", err)
		}
	}
}
