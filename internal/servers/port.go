package servers

import (
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
)

// Ports come from below the range of outgoing connections (32768 on Linux, 49152 on
// macOS). In that range a client that repeatedly dials a killed server may get the
// server's port as its own. It is then connected to itself, and the server cannot
// restart on the port.
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

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
