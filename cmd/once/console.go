package main

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/console"
	"github.com/watermill-once/once/schema"
)

type consoleOptions struct {
	config console.Config
	color  string
	listen string
	write  bool
}

// A few viewers and the running changes need no more connections.
const consoleConnections = 10

const consoleHelp = `Serve the console on this machine: a web page with the outbox, dead letters, the sent log,
the quarantine and its replays. It opens with the address that the command prints, which
has a secret. Whoever has the address can see all messages.

Without --write nothing can be changed. With it, changes are made by --actor. A signal
stops the process; a replay that runs is paused, and can be resumed.

  once console --environment staging
  ssh -L 9465:127.0.0.1:9465 host once console --write --actor ann

For many users, mount the console in a service that knows them: see docs/console.md.`

func (a *app) consoleCommand() *cobra.Command {
	o := consoleOptions{color: string(console.Gray)}
	cmd := &cobra.Command{
		Use:   "console",
		Short: "Serve web pages to look at and to operate the tables",
		Long:  consoleHelp,
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return a.console(cmd.Context(), o) },
	}
	flags := cmd.Flags()
	flags.StringVar(&o.listen, "listen", "127.0.0.1:9465", "address of this machine to serve on; port 0 takes any free port")
	flags.BoolVar(&o.write, "write", false, "allow changes, by --actor")
	flags.StringVar(&o.config.Environment, "environment", "", "name in a banner on each page, such as production")
	flags.Var(oneOf(&o.color, "gray", "red", "orange", "green", "blue", "purple"), "color", "color of the banner")
	flags.Var(duration(&o.config.InboxRetention), "inbox-retention", "how long all consumers remember ids (default: 7d)")
	flags.BoolVar(&o.config.ReplayToAbsent, "to-absent", false, "allow replays to consumers that no process runs")
	fromEnv(flags, "environment", "color")
	return cmd
}

func (a *app) console(ctx context.Context, o consoleOptions) error {
	if a.settings.json {
		return usagef("once console has no --json: it serves web pages")
	}
	if err := checkLoopback(o.listen); err != nil {
		return err
	}
	actor, err := a.actor()
	if err != nil {
		return err
	}
	db, err := a.open(ctx, false)
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(consoleConnections)
	if err := schema.Check(ctx, db.DB, db.tables); err != nil {
		return errors.Join(fmt.Errorf("%w%s", err, remedy(err)), db.Close())
	}
	config := o.config
	config.Schema, config.Color = db.tables, console.Color(o.color)
	config.Logger = watermill.NewSlogLogger(a.logger("text", "warn"))
	config.Authorize = func(_ *http.Request, action console.Action) (string, error) {
		if action.Changes() && !o.write {
			return "", errors.New("once console runs without --write")
		}
		return actor, nil
	}
	pages, err := console.Handler(db.DB, config)
	if err != nil {
		return errors.Join(usageError{err}, db.Close())
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.listen)
	if err != nil {
		return errors.Join(usagef("--listen: %w", err), db.Close())
	}
	address, secret := listener.Addr().String(), rand.Text()
	server := &web{listener: listener, server: &http.Server{
		Handler: secretPages(pages, address, secret), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
	}}
	fmt.Fprintf(a.stdout, "http://%s/?secret=%s\n", address, secret)
	return once.Run(ctx, 0, server, pages, db)
}

// On an address that other machines can reach, the secret would go over the network unencrypted.
func checkLoopback(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return usagef("--listen %q: must be host:port", address)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return usagef("--listen %q: must be an address of this machine only, such as 127.0.0.1:9465, because the console is served "+
			"without TLS; reach it through ssh -L or kubectl port-forward, or mount it in a service", address)
	}
	return nil
}

// secretPages serves only a browser that has opened the address with the secret, and programs that
// send it as a bearer token: otherwise every
// user and program of this machine could use the port. It checks the host name first, so that a
// page of another site cannot reach the port through a name of its own that resolves to this
// machine.
func secretPages(pages http.Handler, address, secret string) http.Handler {
	_, port, _ := net.SplitHostPort(address)
	cookie := "once_console_" + port // without the port, two consoles on this machine would overwrite each other's cookie
	names := []string{"localhost", "127.0.0.1", "::1"}
	same := func(given string) bool { return subtle.ConstantTimeCompare([]byte(given), []byte(secret)) == 1 }
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil { // browsers leave out port 80
			host = strings.Trim(r.Host, "[]")
		}
		if ip := net.ParseIP(host); !slices.Contains(names, host) && (ip == nil || !ip.IsLoopback()) {
			http.Error(w, "once console answers on the address that it has printed only.", http.StatusMisdirectedRequest)
			return
		}
		if given := r.URL.Query().Get("secret"); r.URL.Path == "/" && given != "" && same(given) {
			http.SetCookie(w, &http.Cookie{Name: cookie, Value: secret, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
			w.Header().Set("Referrer-Policy", "no-referrer")
			w.Header().Set("Cache-Control", "no-store")
			http.Redirect(w, r, "/", http.StatusSeeOther)
			return
		}
		token, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if c, err := r.Cookie(cookie); (err != nil || !same(c.Value)) && (!bearer || !same(token)) {
			http.Error(w, "Open the address that once console has printed: it has the secret.", http.StatusUnauthorized)
			return
		}
		pages.ServeHTTP(w, r)
	})
}

type metrics struct {
	handler  http.Handler // serves the metrics in the text format of Prometheus
	provider *sdkmetric.MeterProvider
}

func newMetrics() (*metrics, error) {
	registry := prometheus.NewRegistry() // the global registry accepts each metric only once
	reader, err := exporter.New(exporter.WithRegisterer(registry), exporter.WithoutScopeInfo())
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return &metrics{
		handler:  promhttp.HandlerFor(registry, promhttp.HandlerOpts{}),
		provider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)),
	}, nil
}

func (m *metrics) close() error { return m.provider.Shutdown(context.Background()) }

// web serves health and metrics, or the console.
type web struct {
	server   *http.Server
	listener net.Listener
}

func newWeb(listener net.Listener, metrics, health http.Handler) *web {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
	mux.Handle("/health/", health)
	return &web{server: &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}, listener: listener}
}

func (w *web) Run(context.Context) error {
	if err := w.server.Serve(w.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	return nil
}

// Close ends Run, also a later one.
func (w *web) Close() error { return w.server.Close() }
