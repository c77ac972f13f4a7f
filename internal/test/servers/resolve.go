package servers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/lib/pq"
	amqp "github.com/rabbitmq/amqp091-go"
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

	// ComposeFile is the path of a compose.yaml. By default it is the deploy/compose.yaml in
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
			version, err := askPostgres(ctx, url, "SHOW server_version")
			if err != nil {
				return err
			}
			return mustBe(PostgresVariable, version)
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
			_, version, err := askRabbit(ctx, url)
			if err != nil {
				return err
			}
			return mustBe(RabbitVariable, version)
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

// search finds one server. It tries the sources of a server in the order that the
// package documentation describes.
type search struct {
	name     string // "PostgreSQL"
	variable string // environment variable with the URL of a server
	address  string // address to try without the variable
	url      string // URL of the server at that address
	service  string // name in deploy/compose.yaml

	ask   func(ctx context.Context, url string) error // checks that a server accepts a connection
	start func(ctx context.Context) (*Server, error)  // starts a private server
	ctl   func(url string) Ctl                        // returns the rabbitmqctl command for a running server; may be nil
}

func (s search) run(ctx context.Context, config ResolveConfig) (*Server, error) {
	server, err := s.find(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("servers: no %s: %w", s.name, err)
	}
	if config.Output != nil {
		_, _ = fmt.Fprintf(config.Output, "%s: %s\n", s.name, server.how)
	}
	return server, nil
}

func (s search) find(ctx context.Context, config ResolveConfig) (*Server, error) {
	if config.Private {
		return s.start(ctx)
	}
	if url := os.Getenv(s.variable); url != "" {
		// The user has chosen this server, so no other server is tried.
		if err := s.ask(ctx, url); err != nil {
			return nil, fmt.Errorf("%s: %w", s.variable, err)
		}
		return s.running(url, "that of "+s.variable), nil
	}

	err := s.ask(ctx, s.url)
	if err == nil {
		return s.running(s.url, s.address+", which answers"), nil
	}
	reasons := []error{errors.New(s.variable + " is not set"), fmt.Errorf("%s: %w", s.address, err)}

	server, err := s.start(ctx)
	if err == nil {
		server.how += because(reasons)
		return server, nil
	}
	reasons = append(reasons, err)

	if err = s.compose(ctx, config.ComposeFile); err == nil {
		how := s.address + ", a container of deploy/compose.yaml that stays until docker compose down"
		return s.running(s.url, how+because(reasons)), nil
	}
	return nil, errors.Join(append(reasons, err)...)
}

// running returns a Server for a server that was running already. Its Close does
// nothing.
func (s search) running(url, how string) *Server {
	server := &Server{URL: url, how: how, close: func() error { return nil }}
	if s.ctl != nil {
		server.Ctl = s.ctl(url)
	}
	return server
}

func because(reasons []error) string {
	words := make([]string, len(reasons))
	for i, reason := range reasons {
		words[i] = reason.Error()
	}
	return " (" + strings.Join(words, "; ") + ")"
}

var (
	errDSN = errors.New("the DSN is invalid: it must be postgres://user:password@host/database, or key=value pairs")
	errURL = errors.New("the URL is invalid: it must be amqp://user:password@host/, with special characters percent-encoded")
)

// CheckVariables returns an error that names PG_DSN or AMQP_URL if it is set but
// invalid. The error does not say why it is invalid, because a parser's error may
// contain the password.
func CheckVariables() error {
	var errs []error
	if dsn := os.Getenv("PG_DSN"); dsn != "" {
		if _, err := pq.NewConfig(dsn); err != nil {
			errs = append(errs, fmt.Errorf("PG_DSN: %w", errDSN))
		}
	}
	if url := os.Getenv("AMQP_URL"); url != "" {
		if _, err := amqp.ParseURI(url); err != nil {
			errs = append(errs, fmt.Errorf("AMQP_URL: %w", errURL))
		}
	}
	return errors.Join(errs...)
}
