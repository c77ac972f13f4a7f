package servers

import (
	"errors"
	"net"
	"testing"
)

func TestCollided(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"RabbitMQ ended: {dist_port_already_used,17596,not_erlang}":             true,
		"RabbitMQ ended: {error,eaddrinuse}":                                    true,
		"PostgreSQL ended: could not bind IPv4 address: Address already in use": true,
		"RabbitMQ ended: the configuration is invalid":                          false,
	} {
		if got := collided(errors.New(text)); got != want {
			t.Errorf("%s: %t", text, got)
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if !collided(errors.New("it ended"), listener.Addr().(*net.TCPAddr).Port) {
		t.Error("a port that is taken is no collision")
	}
}
