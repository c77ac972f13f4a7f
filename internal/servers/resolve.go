package servers

import (
	"cmp"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
)

// ResolveConfig configures the search for servers.
type ResolveConfig struct {
	// Output receives one line for each server. The line names the chosen server and
	// the reason. Defaults to no output.
	Output io.Writer

	// Private ignores running servers, and starts new ones from the binaries of this
	// machine. Defaults to false.
	Private bool

	// PostgresAddress and RabbitAddress are tried if PG_DSN or AMQP_URL is not set.
	// They default to 127.0.0.1:5432 and 127.0.0.1:5672.
	PostgresAddress, RabbitAddress string

	// Postgres and Rabbit configure private servers. See [StartPostgres] and
	// [StartRabbit] for the defaults.
	Postgres PostgresConfig
	Rabbit   RabbitConfig

	// ComposeFile is the path of a compose.yaml. By default it is the compose.yaml in
	// the working directory, or in the nearest directory above it. Only a directory
	// that also contains a go.mod counts.
	ComposeFile string
}

// Server is a server that was found or started. Close stops it only if it was started.
type Server struct {
	// URL is a PostgreSQL DSN or an AMQP URL. It may contain a password.
	URL string

	// Ctl runs rabbitmqctl for a broker. It is nil for PostgreSQL, and if no
	// rabbitmqctl is known for the broker.
	Ctl Ctl

	how   string
	close func() error
}

// Close stops the server if this process has started it. Further calls do nothing, and
// return the result of the first call.
func (s *Server) Close() error { return s.close() }

// Set is a PostgreSQL server and a RabbitMQ broker.
type Set struct {
	PGDSN   string
	AMQPURL string

	servers []*Server
	ctl     Ctl
}

// Environment returns the environment variables that name the servers to a child
// process.
func (s *Set) Environment() []string {
	variables := []string{"PG_DSN=" + s.PGDSN, "AMQP_URL=" + s.AMQPURL}
	if s.ctl != nil {
		variables = append(variables, ctlVariable+"="+strings.Join(s.ctl, " "))
	}
	return variables
}

// Resolve finds or starts both servers. It tries the sources of a server in the order
// that the package documentation describes. If no source works, the error says why, and
// what to do.
func Resolve(ctx context.Context, config ResolveConfig) (*Set, error) {
	config.Output = &oneAtATime{output: config.Output}
	var postgres, rabbit *Server
	var postgresErr, rabbitErr error
	var both sync.WaitGroup
	both.Go(func() { postgres, postgresErr = ResolvePostgres(ctx, config) })
	both.Go(func() { rabbit, rabbitErr = ResolveRabbit(ctx, config) })
	both.Wait()

	set := &Set{}
	for _, server := range []*Server{postgres, rabbit} {
		if server != nil {
			set.servers = append(set.servers, server)
		}
	}
	if err := errors.Join(postgresErr, rabbitErr); err != nil {
		return nil, errors.Join(err, set.Close())
	}
	set.PGDSN, set.AMQPURL, set.ctl = postgres.URL, rabbit.URL, rabbit.Ctl
	return set, nil
}

// Close stops the servers that Resolve has started.
func (s *Set) Close() error {
	errs := make([]error, len(s.servers))
	for i, server := range s.servers {
		errs[i] = server.Close()
	}
	return errors.Join(errs...)
}

// ResolvePostgres finds or starts only a PostgreSQL server. See [Resolve].
func ResolvePostgres(ctx context.Context, config ResolveConfig) (*Server, error) {
	address := cmp.Or(config.PostgresAddress, "127.0.0.1:5432")
	return search{
		name:     "PostgreSQL",
		variable: "PG_DSN",
		url:      "postgres://postgres:postgres@" + address + "/postgres?sslmode=disable",
		address:  address,
		service:  "postgres",
		ask: func(ctx context.Context, url string) error {
			_, err := askPostgres(ctx, url, "SELECT 1")
			return err
		},
		start: func(ctx context.Context) (*Server, error) {
			p, err := startPostgres(ctx, config.Postgres)
			if err != nil {
				return nil, err
			}
			return &Server{URL: p.DSN("postgres"), how: "a private one, " + p.Address(), close: p.Close}, nil
		},
	}.run(ctx, config)
}

// ResolveRabbit finds or starts only a RabbitMQ broker. See [Resolve].
func ResolveRabbit(ctx context.Context, config ResolveConfig) (*Server, error) {
	address := cmp.Or(config.RabbitAddress, "127.0.0.1:5672")
	return search{
		name:     "RabbitMQ",
		variable: "AMQP_URL",
		url:      "amqp://guest:guest@" + address + "/",
		address:  address,
		service:  "rabbitmq",
		ctl:      ctlFor,
		ask: func(ctx context.Context, url string) error {
			_, err := askRabbit(ctx, url)
			return err
		},
		start: func(ctx context.Context) (*Server, error) {
			r, err := startRabbit(ctx, config.Rabbit)
			if err != nil {
				return nil, err
			}
			return &Server{URL: r.URL("/"), Ctl: r.RabbitCtl(), how: "a private one, " + r.Address(), close: r.Close}, nil
		},
	}.run(ctx, config)
}

// oneAtATime is a writer that goroutines may use concurrently.
type oneAtATime struct {
	mu     sync.Mutex
	output io.Writer
}

func (o *oneAtATime) Write(line []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.output == nil {
		return len(line), nil
	}
	return o.output.Write(line)
}
