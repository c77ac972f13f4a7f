package servers

import (
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
)

// The ports are below the range that the system uses for outgoing connections (from
// 32768 on Linux, from 49152 on macOS). In that range, a client that repeatedly dials a
// killed server may get the server's port as its own outgoing port. The client is then
// connected to itself, and the server cannot start again on the port.
const (
	lowestPort  = 15_000
	highestPort = 32_000
)

// freePort returns a port of 127.0.0.1 on which no process listens.
func freePort() (int, error) {
	for range 100 {
		port := lowestPort + rand.IntN(highestPort-lowestPort)
		if !taken(port) {
			return port, nil
		}
	}
	return 0, errors.New("no free port on 127.0.0.1")
}

// taken reports whether a process listens on one of the ports.
func taken(ports ...int) bool {
	return slices.ContainsFunc(ports, func(port int) bool {
		listener, err := net.Listen("tcp", loopback(port))
		if err != nil {
			return true
		}
		_ = listener.Close()
		return false
	})
}

// collided reports whether a server did not start because a port was in use. It returns
// true if a port is still in use. It also returns true if the error says that a port
// was in use, because another process may have used the port only for a moment, to look
// for a free port.
func collided(err error, ports ...int) bool {
	text := strings.ToLower(err.Error())
	return taken(ports...) || strings.Contains(text, "already_used") || strings.Contains(text, "eaddrinuse") ||
		strings.Contains(text, "address already in use")
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
