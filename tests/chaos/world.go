package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/test/servers"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/schema"
)

const (
	user     = "chaos" // user of the processes, in PostgreSQL and RabbitMQ
	password = "secret"
)

// world contains the servers and the processes that the faults affect.
type world struct {
	dir      string
	program  string // path of the binary of the processes
	old      string // path of the binary of an earlier release, or ""
	postgres *servers.Postgres
	standby  *servers.Postgres // of postgres; nil without a cluster
	rabbit   *servers.Rabbit
	nodes    []*servers.Rabbit // rabbit, and the other nodes of its cluster
	quorum   bool              // queues are quorum queues
	poll     time.Duration     // between two looks at the tables of forwarders and consumers; 0 means their default
	disk     *disk             // contains the outbox and the table hoard; nil if this machine cannot mount a disk

	db     *sql.DB // connects directly, without a proxy
	branch *sql.DB // the database of the second service

	pg      map[string][]*proxy // by role, one for each server
	amqp    map[string][]*proxy
	members []*member
	load    *load

	recorder *recorder
	outside  *outside
	escaped  atomic.Int64 // messages that were sent or applied while they were paused
	hurried  atomic.Int64 // messages that were applied in spite of a limit
}

// newWorld starts the servers, and creates tables and queues. The caller calls Close on
// the result, also after an error.
func newWorld(ctx context.Context, o options) (*world, error) {
	w := &world{
		quorum: o.quorum || o.cluster > 0, poll: 50 * time.Millisecond,
		pg: make(map[string][]*proxy), amqp: make(map[string][]*proxy), outside: newOutside(),
	}
	if o.pace > 0 {
		w.poll = 0
	}
	w.load = &load{world: w, most: mostWaiting}
	var err error
	if w.dir, err = os.MkdirTemp("", "once-chaos-"); err != nil {
		return w, err
	}
	if w.postgres, err = servers.StartPostgres(ctx, servers.PostgresConfig{
		Settings: []string{"max_connections=200", "deadlock_timeout=200ms", "max_wal_size=4GB", "work_mem=64MB"},
	}); err != nil {
		return w, err
	}
	broker := servers.RabbitConfig{
		Settings: []string{fmt.Sprintf("max_message_size = %d", mostBody), "disk_free_limit.absolute = 1MB"},
	}
	if o.cluster > 0 {
		w.load.slow = time.Second / 2
		broker.Settings = append(broker.Settings, "cluster_partition_handling = pause_minority")
		broker.Patience = 20 * time.Minute // on a busy machine, three nodes start slowly
		if w.standby, err = w.postgres.StartStandby(ctx, true); err != nil {
			return w, err
		}
	}
	for range max(o.cluster, 1) {
		node, err := servers.StartRabbit(ctx, broker)
		if err != nil {
			return w, err
		}
		w.nodes = append(w.nodes, node)
		w.rabbit = w.nodes[0]
		broker.Peer = w.rabbit
	}
	for _, prepare := range []func(context.Context) error{w.prepareDatabase, w.prepareBroker, w.connect} {
		if err := prepare(ctx); err != nil {
			return w, err
		}
	}
	var urls []string
	for _, node := range w.nodes {
		urls = append(urls, node.URL("/"))
	}
	w.recorder = startRecorder(urls...)
	return w, nil
}

func (w *world) prepareDatabase(ctx context.Context) error {
	admin, err := sql.Open("postgres", w.postgres.DSN("postgres"))
	if err != nil {
		return err
	}
	defer admin.Close()
	for _, query := range []string{`CREATE ROLE ` + user + ` LOGIN`, `CREATE DATABASE chaos OWNER ` + user} {
		if _, err := admin.ExecContext(ctx, query); err != nil {
			return err
		}
	}
	if w.db, err = sql.Open("postgres", w.dsn("postgres", "chaos")); err != nil {
		return err
	}
	w.db.SetMaxOpenConns(20)
	w.db.SetMaxIdleConns(20)
	owner, err := sql.Open("postgres", w.dsn(user, "chaos"))
	if err != nil {
		return err
	}
	defer owner.Close()
	if err := schema.Up(ctx, owner, schema.Config{}); err != nil {
		return err
	}
	if _, err = owner.ExecContext(ctx, tables); err != nil {
		return err
	}
	if err := w.prepareBranch(ctx); err != nil {
		return err
	}
	if w.standby != nil {
		return nil // a standby on this machine cannot have the disk too
	}
	if w.disk, err = mountDisk(ctx, w.db); err != nil {
		return err
	}
	return w.disk.move(ctx, w.db)
}

// dsn returns the address of a database. It names PostgreSQL and its standby, or the given proxies
// in front of them. lib/pq and pgx connect to the one that accepts writes.
func (w *world) dsn(user, database string, proxies ...*proxy) string {
	addresses := []string{w.postgres.Address()}
	if w.standby != nil {
		addresses = append(addresses, w.standby.Address())
	}
	if len(proxies) > 0 {
		addresses = addressesOf(proxies)
	}
	var hosts, ports []string
	for _, address := range addresses {
		host, port, _ := strings.Cut(address, ":")
		hosts, ports = append(hosts, host), append(ports, port)
	}
	dsn := fmt.Sprintf("host=%s port=%s user=%s dbname=%s sslmode=disable", strings.Join(hosts, ","), strings.Join(ports, ","), user, database)
	if len(addresses) > 1 {
		dsn += " target_session_attrs=read-write"
	}
	return dsn
}

// lockTimeout is the part of the processes' DSN that limits waits for locks.
const lockTimeout = " lock_timeout=2000"

// amqpURL returns the URL of a broker for the processes. With several nodes, the library's default
// heartbeat is short enough.
func (w *world) amqpURL(address string) string {
	url := fmt.Sprintf("amqp://%s:%s@%s/", user, password, address)
	if len(w.nodes) == 1 {
		url += "?heartbeat=3"
	}
	return url
}

// addresses returns the addresses of the nodes of RabbitMQ.
func (w *world) addresses() (all []string) {
	for _, node := range w.nodes {
		all = append(all, node.Address())
	}
	return all
}

func addressesOf(proxies []*proxy) (all []string) {
	for _, p := range proxies {
		all = append(all, p.address)
	}
	return all
}

func (w *world) prepareBroker(ctx context.Context) error {
	if err := w.eval(ctx, fmt.Sprintf(`begin ok = rabbit_auth_backend_internal:add_user(<<%[1]q>>, <<%[2]q>>, <<"chaos">>),
		ok = rabbit_auth_backend_internal:set_permissions(<<%[1]q>>, <<"/">>, <<".*">>, <<".*">>, <<".*">>, <<"chaos">>) end`,
		user, password)); err != nil {
		return err
	}
	return w.declare(ctx)
}

// declare declares the exchanges and queues, and makes the broker write them to disk.
// Without this, RabbitMQ 3.10 can lose them if it is killed soon after their declaration.
func (w *world) declare(ctx context.Context) error {
	config := exchanges(w.rabbit.URL("/"), w.quorum)
	err := declareTopics(config, append(slices.Clone(topics), remote)...)
	config.Queue.GenerateName = func(string) string { return recorderQueue }
	if w.quorum {
		// A quorum queue ignores that a consumer is exclusive. It would deliver later messages to a new
		// connection before those that the lost one had not acked.
		config.Queue.Arguments["x-single-active-consumer"] = true
	}
	err = errors.Join(err, declareTopics(config, ledger))
	for _, node := range w.nodes {
		err = errors.Join(err, node.WriteDefinitions(ctx))
	}
	return err
}

// declareTopics uses a Subscriber, because the arguments of a queue depend on the version of the
// broker.
func declareTopics(config wamqp.Config, topics ...string) error {
	sub, err := rabbit.NewSubscriber(config, rabbit.SubscriberConfig{Logger: watermill.NopLogger{}})
	if err != nil {
		return err
	}
	var errs []error
	for _, topic := range topics {
		errs = append(errs, sub.SubscribeInitialize(topic))
	}
	return errors.Join(append(errs, sub.Close())...)
}

// ctl runs rabbitmqctl. line contains the arguments, separated by spaces.
func (w *world) ctl(ctx context.Context, line string) error {
	_, err := w.rabbit.Ctl(ctx, strings.Fields(line)...)
	return err
}

func (w *world) eval(ctx context.Context, expression string) error {
	_, err := w.rabbit.Eval(ctx, expression)
	return err
}

// channel calls the function do with a channel of a direct connection, without a proxy.
func (w *world) channel(do func(channel *amqp.Channel) error) error {
	conn, err := w.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	channel, err := conn.Channel()
	if err != nil {
		return err
	}
	return do(channel)
}

// dial connects to the first node that answers.
func (w *world) dial() (conn *amqp.Connection, err error) {
	if len(w.nodes) == 1 {
		return amqp.Dial(w.rabbit.URL("/"))
	}
	for _, node := range w.nodes {
		if conn, err = amqp.DialConfig(node.URL("/"), amqp.Config{Heartbeat: time.Second, Dial: amqp.DefaultDial(2 * time.Second)}); err == nil {
			return conn, nil
		}
	}
	return nil, err
}

// connect starts a proxy for each role of the first service and each server that the role
// uses.
func (w *world) connect(context.Context) error {
	for _, role := range []string{writing, forwarding, consuming} {
		databases := []*servers.Postgres{w.postgres}
		if w.standby != nil {
			databases = append(databases, w.standby)
		}
		for _, server := range databases {
			p, err := newProxy(server.Address(), postgresProtocol)
			if err != nil {
				return err
			}
			w.pg[role] = append(w.pg[role], p)
		}
		if role == writing {
			continue
		}
		for _, address := range w.addresses() {
			p, err := newProxy(address, amqpProtocol)
			if err != nil {
				return err
			}
			w.amqp[role] = append(w.amqp[role], p)
		}
	}
	return nil
}

// begin starts two processes of each role, and the process of the second service. The
// writers start paused. If a part is broken on purpose, only one forwarder is started.
func (w *world) begin(plant string) error {
	if (life{Plant: plant}).planted(plantPauses) {
		if _, err := w.db.Exec(blind); err != nil {
			return err
		}
	}
	for _, role := range []string{consuming, forwarding, writing} {
		for n := range 2 {
			if n == 1 && role == forwarding && plant != "" {
				continue // one process with the mistake is enough
			}
			m := &member{
				life: life{
					Role: role, Plant: plant, Quorum: w.quorum, Poll: w.poll,
					DSN: w.dsn(user, "chaos", w.pg[role]...) + lockTimeout,
				},
				dir: w.dir, base: fmt.Sprintf("%s%d", role, n+1), driver: n, program: w.program, old: w.old,
				before: make(map[string]int64), exits: make(map[int]int64), paused: true,
			}
			if role != writing {
				m.Nodes = addressesOf(w.amqp[role])
				m.AMQP = w.amqpURL(m.Nodes[0])
			}
			w.members = append(w.members, m)
			if err := m.start(); err != nil {
				return err
			}
		}
	}
	return w.beginBranch(plant)
}

func (w *world) membersOf(role string) []*member {
	var list []*member
	for _, m := range w.members {
		if m.Role == role {
			list = append(list, m)
		}
	}
	return list
}

// count returns the sum of one count over all members with the given role.
// name is the name of the count.
func (w *world) count(role, name string) (n int64) {
	for _, m := range w.membersOf(role) {
		n += m.count(name)
	}
	return n
}

func (w *world) tell(role string, o order) {
	for _, m := range w.membersOf(role) {
		m.tell(o)
	}
}

// proxies returns the proxies of the given kinds of servers, such as w.pg. Without an
// argument it returns all proxies.
func (w *world) proxies(which ...map[string][]*proxy) []*proxy {
	if len(which) == 0 {
		which = []map[string][]*proxy{w.pg, w.amqp}
	}
	var all []*proxy
	for _, some := range which {
		for _, role := range []string{writing, forwarding, consuming} {
			all = append(all, some[role]...)
		}
	}
	return all
}

// stop ends the processes. If a process does not end within a minute, stop kills it. The
// returned error names these processes.
func (w *world) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	for _, role := range []string{writing, forwarding, branching, consuming} {
		for _, m := range w.membersOf(role) {
			if m.stop(ctx) {
				errs = append(errs, fmt.Errorf("%s did not end within a minute", m.base))
			}
		}
	}
	w.members = nil
	return errors.Join(errs...)
}

// Close stops all processes and servers, and removes their files.
func (w *world) Close() error {
	errs := []error{w.stop()}
	if w.recorder != nil {
		w.recorder.stop()
	}
	for _, p := range w.proxies() {
		errs = append(errs, p.Close())
	}
	if w.db != nil {
		errs = append(errs, w.db.Close())
	}
	if w.branch != nil {
		errs = append(errs, w.branch.Close())
	}
	for _, node := range slices.Backward(w.nodes) { // the first one has the others' epmd
		errs = append(errs, node.Close())
	}
	if w.standby != nil {
		errs = append(errs, w.standby.Close())
	}
	if w.postgres != nil {
		errs = append(errs, w.postgres.Close())
	}
	return errors.Join(append(errs, w.disk.unmount(), os.RemoveAll(w.dir))...)
}

// tables creates the tables of the simulated business. They have no unique constraint
// that could hide an effect that happened twice.
//
// A writer locks the row of a key, and takes the next number of the key. The lock is held
// until the end of the transaction. So transactions that write events of the same key
// wait for each other, and the numbers of committed events have no gaps.
const tables = `
CREATE TABLE business (
	serial       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	message_id   text   NOT NULL,
	tx           text   NOT NULL,
	topic        text   NOT NULL,
	kind         text   NOT NULL,
	ordering_key text   NOT NULL,
	number       bigint NOT NULL
);
CREATE INDEX business_tx ON business (tx);
CREATE TABLE keys (ordering_key text PRIMARY KEY, number bigint NOT NULL);
CREATE TABLE effects (
	serial     bigint  GENERATED ALWAYS AS IDENTITY,
	message_id text    NOT NULL,
	consumer   text    NOT NULL,
	intact     boolean NOT NULL
);
CREATE TABLE hoard (message_id text NOT NULL, bytes bytea NOT NULL);
ALTER TABLE hoard ALTER bytes SET STORAGE EXTERNAL;
CREATE TABLE attempts (message_id text PRIMARY KEY, n int NOT NULL);
CREATE TABLE mails (reference text NOT NULL);
CREATE INDEX mails_reference ON mails (reference);
CREATE TABLE mended (kind text PRIMARY KEY);
CREATE TABLE outage (down boolean NOT NULL);
CREATE TABLE contended (id int PRIMARY KEY, value int NOT NULL);
INSERT INTO contended SELECT n, 0 FROM generate_series(1, 10) AS n;`
