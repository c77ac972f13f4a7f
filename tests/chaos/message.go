package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/outbox"
)

// Topics, which are also the names of exchanges and consumers.
//
// A message of the topic ledger goes to two queues: the consumer's and the recorder's.
// The consumer of the ledger handles each message in its own transaction.
//
// A message of the topic notices goes to one queue. If this queue is missing, the message
// is unroutable. The consumer of notices is durable, and handles batches.
//
// The consumer of accounts compares versions and business keys. Only some faults write
// messages for it.
const (
	ledger   = "ledger"
	notices  = "notices"
	accounts = "accounts"
)

// topics contains the topics of the first service.
var topics = []string{ledger, notices, accounts, replies}

// Kinds of messages. The handler treats each kind differently.
const (
	plain         = "plain"
	hopeless      = "hopeless"  // the handler fails
	panicking     = "panicking" // the handler panics
	exiting       = "exiting"   // the handler calls os.Exit
	timingOut     = "timing-out"
	leavingOpen   = "leaving-open"
	endingSession = "ending-session"
	endingTx      = "ending-tx" // the handler rolls its transaction back and begins another
	hoarding      = "hoarding"  // the handler writes to the small disk
	stumbling     = "stumbling" // the handler fails the first attempts
	intended      = "intended"  // the handler sends a mail
	slow          = "slow"      // the handler takes longer than the broker waits for an ack
	oversized     = "oversized" // larger than the broker accepts
	bloated       = "bloated"   // has a header that the outbox refuses
)

const (
	headerKind   = "chaos_kind"
	headerNumber = "chaos_number"

	// headerRequest is the metadata field with the business key of a message for accounts.
	// Without this field, the key is the id of the message.
	headerRequest = "chaos_request"
)

// mostBody is the largest body in bytes that the broker accepts, as this test
// configures it.
const mostBody = 512 << 10

// payload returns a payload that depends only on id and kind, so that every receiver can
// check it. Any byte value can occur in it.
func payload(id, kind string) []byte {
	sum := sha256.Sum256([]byte(id))
	random := rand.New(rand.NewPCG(binary.LittleEndian.Uint64(sum[:]), binary.LittleEndian.Uint64(sum[8:])))
	size := 20 + random.IntN(500)
	if kind == oversized {
		size = mostBody + 1000
	}
	body := make([]byte, size)
	for i := range body {
		body[i] = byte(random.Uint32())
	}
	return body
}

func echoes(topic, kind, id string) bool {
	sum := sha256.Sum256([]byte(id))
	return topic == ledger && kind == plain && sum[31] < 26
}

func echo(id string) string { return id + "+echo" }

// event is one message that a writer stores in the outbox, together with a business
// row.
type event struct {
	id, kind, key string
	number        int64 // number of the event within its key, from 1

	to     string // topic; empty for the ledger or accounts
	tenant string

	// These fields are set only if the topic is "accounts".
	account string // aggregate whose version is number
	request string // business key
}

func (e event) topic() string {
	if e.to != "" {
		return e.to
	}
	if e.account != "" || e.request != "" {
		return accounts
	}
	return ledger
}

func (e event) message() *message.Message {
	msg := message.NewMessage(e.id, payload(e.id, e.kind))
	msg.Metadata.Set(headerKind, e.kind)
	if e.key != "" {
		outbox.SetOrderingKey(msg, e.key)
		msg.Metadata.Set(headerNumber, strconv.FormatInt(e.number, 10))
	}
	if e.tenant != "" {
		outbox.SetTenant(msg, e.tenant)
	}
	if e.account != "" {
		outbox.SetAggregate(msg, "account", e.account, e.number)
	}
	if e.request != "" {
		msg.Metadata.Set(headerRequest, e.request)
	}
	if e.kind == bloated {
		msg.Metadata.Set("bloat", strings.Repeat("x", 70<<10))
	}
	return msg
}

// outside records the bodies of messages that were published directly to the broker, and
// must go to quarantine.
type outside struct {
	mu     sync.Mutex
	count  int
	bodies map[string]string // key: body; value: reason for the quarantine
}

func newOutside() *outside { return &outside{bodies: make(map[string]string)} }

// add returns a new unique body, and records the reason for its quarantine.
func (o *outside) add(wrong string) []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.count++
	body := append([]byte(fmt.Sprintf("outside %d ", o.count)), payload(fmt.Sprint("outside", o.count), plain)...)
	o.bodies[string(body)] = wrong
	return body
}

func (o *outside) all() map[string]string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.bodies)
}

// States of a transaction in a journal. Before a transaction, a writer records the state
// "tried". After the transaction, it records one of the other states. If "tried" is the
// last state of a transaction, the writer was killed before it knew the result, so the
// result counts as unknown.
const (
	tried      = 'T'
	committed  = 'C'
	rolledBack = 'R'
	unknown    = 'U'
)

// journal is the file in which a writer records its transactions. It writes one line
// before each transaction and one line after it. Each line is a single write to the file,
// so even if the process is killed, the file contains no partial line.
type journal struct{ file *os.File }

func openJournal(name string) (*journal, error) {
	file, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	return &journal{file}, err
}

func (j *journal) note(state byte, tx string, events int) error {
	_, err := fmt.Fprintf(j.file, "%c %s %d\n", state, tx, events)
	return err
}

// entry is the latest entry about a transaction.
type entry struct {
	state  byte
	events int
}

// readJournals returns the latest entry of each transaction in the journals of dir. The
// key of the map is the name of the transaction.
func readJournals(dir string) (map[string]entry, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.journal"))
	if err != nil {
		return nil, err
	}
	all := make(map[string]entry)
	for _, name := range files {
		if err := readJournal(name, all); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func readJournal(name string, into map[string]entry) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var (
			e  entry
			tx string
		)
		if _, err := fmt.Sscanf(lines.Text(), "%c %s %d", &e.state, &tx, &e.events); err != nil {
			return fmt.Errorf("%s: %q: %w", filepath.Base(name), lines.Text(), err)
		}
		if bytes.IndexByte([]byte{tried, committed, rolledBack, unknown}, e.state) < 0 {
			return fmt.Errorf("%s: %q is no state", filepath.Base(name), e.state)
		}
		if e.state == tried {
			if _, again := into[tx]; again {
				return fmt.Errorf("%s: transaction %s began twice", filepath.Base(name), tx)
			}
			e.state = unknown
		}
		into[tx] = e
	}
	return lines.Err()
}
