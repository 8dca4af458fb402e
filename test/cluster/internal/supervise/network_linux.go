package supervise

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"github.com/vishvananda/netlink"
)

// setUpNetwork brings up loopback and the pods' bridge. The bridge exists before the CNI plugin needs it, because the
// kubelet, which refuses loopback addresses, gets the bridge's as its node IP.
func setUpNetwork(s Isolation) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("finding the loopback link: %w", err)
	}
	for _, a := range s.LocalAddrs {
		if err := addAddr(lo, a); err != nil {
			return err
		}
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("bringing up loopback: %w", err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = s.Bridge
	bridge := &netlink.Bridge{LinkAttrs: attrs}
	if err := netlink.LinkAdd(bridge); err != nil {
		return fmt.Errorf("adding the bridge %s: %w (the kernel needs its bridge and veth modules)", s.Bridge, err)
	}
	if err := addAddr(bridge, s.BridgeAddr); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(bridge); err != nil {
		return fmt.Errorf("bringing up the bridge: %w", err)
	}
	return nil
}

func addAddr(link netlink.Link, cidr string) error {
	addr, err := netlink.ParseAddr(cidr)
	if err != nil {
		return fmt.Errorf("parsing address %s: %w", cidr, err)
	}
	if err := netlink.AddrAdd(link, addr); err != nil && !errors.Is(err, syscall.EEXIST) {
		return fmt.Errorf("adding address %s to %s: %w", cidr, link.Attrs().Name, err)
	}
	return nil
}

// listener is the launcher's socket. A socket stays in the network namespace in which it was made, so accepting here
// takes connections from the host.
func listener() (net.Listener, error) {
	f := os.NewFile(ListenerFD, "listener")
	defer f.Close() // FileListener works on a copy
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("taking over the launcher's socket: %w", err)
	}
	return l, nil
}

// proxy joins every connection to the listener with one to addr, which is dialled in this network namespace.
func proxy(l net.Listener, addr string) error {
	for {
		outer, err := l.Accept()
		if err != nil {
			return fmt.Errorf("accepting a connection from the host: %w", err)
		}
		go func() {
			defer outer.Close()
			inner, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", addr)
			if err != nil {
				return // the API server is not up yet; the client sees the connection closed and retries
			}
			defer inner.Close()
			done := make(chan struct{})
			go func() {
				pipe(inner, outer)
				close(done)
			}()
			pipe(outer, inner)
			<-done
		}()
	}
}

// pipe copies until the source ends and passes that end on, while the other direction may go on.
func pipe(to, from net.Conn) {
	_, _ = io.Copy(to, from) // a connection that breaks is for its two ends to report
	if half, ok := to.(*net.TCPConn); ok {
		_ = half.CloseWrite()
	}
}
