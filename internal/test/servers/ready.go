package servers

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/lib/pq"
	amqp "github.com/rabbitmq/amqp091-go"
)

const probeTimeout = 5 * time.Second

// askPostgres executes a query that returns one string. An answer shows that the server
// is ready. An open port does not show this, because a server that is starting or
// frozen also has an open port.
func askPostgres(ctx context.Context, dsn, query string) (answer string, err error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	config, err := pq.NewConfig(dsn)
	if err != nil {
		return "", errDSN // err may contain the password
	}
	config.ConnectTimeout = 0 // lib/pq would remove the deadline that the dialer sets
	connector, err := pq.NewConnectorConfig(config)
	if err != nil {
		return "", err
	}
	connector.Dialer(dialer{ctx})
	db := sql.OpenDB(connector)
	defer func() { _ = db.Close() }()
	err = db.QueryRowContext(ctx, query).Scan(&answer)
	return answer, err
}

// askRabbit logs in to a broker, opens the virtual host, and returns the name of the
// cluster and the version. It fails while the broker is starting.
func askRabbit(ctx context.Context, url string) (cluster, version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	if _, err = amqp.ParseURI(url); err != nil {
		return "", "", errURL // err may contain the password
	}
	conn, err := amqp.DialConfig(url, amqp.Config{Dial: dialer{ctx}.Dial})
	if err != nil {
		return "", "", err
	}
	cluster, _ = conn.Properties["cluster_name"].(string)
	version, _ = conn.Properties["version"].(string)
	return cluster, version, conn.Close()
}

// dialer opens connections that break at the deadline of a context. Neither lib/pq nor
// amqp091 itself ends a handshake when the context ends.
type dialer struct{ ctx context.Context }

func (d dialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(d.ctx, network, address)
}

// DialTimeout implements pq.Dialer.
func (d dialer) DialTimeout(network, address string, _ time.Duration) (net.Conn, error) {
	return d.Dial(network, address)
}

// DialContext implements pq.DialerContext.
func (d dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if deadline, ok := d.ctx.Deadline(); ok {
		err = conn.SetDeadline(deadline)
	}
	return conn, err
}

// await calls probe until it returns nil. It returns an error if the child ends first,
// or if probe has not succeeded after the timeout.
func await(ctx context.Context, c *child, name string, timeout time.Duration, probe func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := probe(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-c.gone:
			return c.failure(name + " ended while it started")
		case <-ctx.Done():
			return c.failure(fmt.Sprintf("%s is not ready (%v): %v", name, context.Cause(ctx), err))
		}
	}
}

// The ports are below the range that the system uses for outgoing connections (from
// 32768 on Linux, from 49152 on macOS). In that range, a client that repeatedly dials a
// killed server may get the server's port as its own outgoing port. The client is then
// connected to itself, and the server cannot start again on the port.
const (
	lowestPort  = 15_000
	highestPort = 32_000
)

func freePort() (int, error) {
	for range 100 {
		port := lowestPort + rand.IntN(highestPort-lowestPort)
		if !taken(port) {
			return port, nil
		}
	}
	return 0, errors.New("no free port on 127.0.0.1")
}

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

const (
	dirPrefix = "once-server-"
	lockName  = "in-use"
)

// tempDir is a directory with a locked file. The system releases the lock when this
// process ends. So a later process can recognise the directories of processes that were
// killed, and remove them.
type tempDir struct {
	path string
	lock *os.File
}

func newTempDir(name string) (tempDir, error) {
	sweepTempDirs()
	path, err := os.MkdirTemp("", dirPrefix+name+"-")
	if err != nil {
		return tempDir{}, fmt.Errorf("directory for %s: %w", name, err)
	}
	lock, err := lockDir(path)
	if err != nil {
		_ = os.RemoveAll(path)
		return tempDir{}, fmt.Errorf("directory for %s: %w", name, err)
	}
	return tempDir{path: path, lock: lock}, nil
}

// lockDir creates a lock file in a directory, locks the file, and only then gives the
// file its final name. So while the owner runs, no other process finds an unlocked file
// with this name.
func lockDir(path string) (*os.File, error) {
	lock, err := os.CreateTemp(path, lockName)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close()
		return nil, err
	}
	if err := os.Rename(lock.Name(), filepath.Join(path, lockName)); err != nil {
		_ = lock.Close()
		return nil, err
	}
	return lock, nil
}

func (d tempDir) remove() error {
	err := os.RemoveAll(d.path)
	_ = d.lock.Close()
	return err
}

// sweepTempDirs removes the directories whose processes have ended. It ignores
// directories of other users, because it cannot remove them.
func sweepTempDirs() {
	locks, _ := filepath.Glob(filepath.Join(os.TempDir(), dirPrefix+"*", lockName))
	for _, name := range locks {
		lock, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			continue
		}
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(filepath.Dir(name))
		}
		_ = lock.Close()
	}
}
