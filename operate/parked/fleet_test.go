package parked_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once" //nolint:depguard // the tests run processes of a whole service
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/rabbit"
)

// processURL is the variable with the address of the broker of a fleet.
const processURL = "ONCE_TEST_PARKED_URL"

// fleet is a table of effects, a queue, and processes that handle its messages.
type fleet struct {
	*bench

	url, role   string
	environment []string
	publisher   *rabbit.Publisher
}

// newFleet creates the table with these columns. role is a key in TestMain.
func newFleet(t *testing.T, role, columns string, environment ...string) *fleet {
	t.Helper()
	f := &fleet{bench: newBench(t, kit.Postgres(t)), url: kit.Rabbit(t).URL, role: role, environment: environment}
	f.Exec(`CREATE TABLE effects (message_id text NOT NULL` + columns + `)`)
	var err error
	f.publisher, err = rabbit.NewPublisher(wamqp.NewDurableQueueConfig(f.url), rabbit.PublisherConfig{})
	kit.OK(t, err)
	t.Cleanup(func() { _ = f.publisher.Close() })
	return f
}

func (f *fleet) start() (pid int, kill func()) {
	return startProcess(f.T, f.DSN, f.role, append(f.environment, processURL+"="+f.url)...)
}

// startThree starts three processes, and waits until the database knows them. kills has the ways to
// kill them, by process id.
func (f *fleet) startThree() (kills map[int]func()) {
	f.Helper()
	kills = map[int]func(){}
	for range 3 {
		pid, kill := f.start()
		kills[pid] = kill
	}
	f.eventually("three instances run", func() bool { return f.Count(`once_consumer_instances`) == 3 })
	return kills
}

func (f *fleet) publish(id, tenant string) {
	f.Helper()
	msg := message.NewMessage(id, nil)
	if tenant != "" {
		msg.Metadata.Set(meta.TenantID, tenant)
	}
	kit.OK(f, f.publisher.Publish(topic, msg))
}

func (f *fleet) effects() int { return f.Count(`effects`) }

func (f *fleet) eventually(what string, cond func() bool) {
	f.Helper()
	kit.Eventually(f, 2*time.Minute, what, cond)
}

// hasEachOnce fails the test unless n messages have taken effect, each once.
func (f *fleet) hasEachOnce(n int) {
	f.Helper()
	f.WantNumber(n, `SELECT COUNT(*) FROM effects`)
	f.WantNumber(n, `SELECT COUNT(DISTINCT message_id) FROM effects`)
}

// beHandling is a process of a fleet.
func beHandling(db *sql.DB, config once.ConsumerConfig, inFlight int, handle once.HandlerFunc) error {
	quiet := watermill.NopLogger{}
	config.Retry.Logger, config.Durable.Logger = quiet, quiet
	c, err1 := once.NewConsumer(db, config)
	sub, err2 := rabbit.NewSubscriber(wamqp.NewDurableQueueConfig(os.Getenv(processURL)),
		rabbit.SubscriberConfig{InFlight: inFlight, Logger: quiet})
	router, err3 := message.NewRouter(message.RouterConfig{}, quiet)
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	c.AddHandler(router, consumer, topic, sub, handle)
	return router.Run(context.Background())
}

func insertEffect(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
	_, err := tx.ExecContext(ctx, `INSERT INTO effects (message_id) VALUES ($1)`, msg.UUID)
	return nil, err
}

func startProcess(t testing.TB, dsn, role string, environment ...string) (pid int, kill func()) {
	t.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(append(os.Environ(), processDSN+"="+dsn, processRole+"="+role), environment...)
	command.Stderr = os.Stderr
	ended := kit.StartChild(t, command)
	return command.Process.Pid, func() {
		_ = command.Process.Kill()
		<-ended
	}
}

func killOne(kills map[int]func()) {
	for _, kill := range kills {
		kill()
		return
	}
}
