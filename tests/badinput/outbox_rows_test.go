package badinput

import (
	"fmt"
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/dead"
	"github.com/watermill-once/once/poison"
)

// fate says where a bad message ends up.
type fate string

const (
	refused      fate = "refused"   // the database refuses the edit, and the row stays unchanged
	delivered    fate = "delivered" // the message is unusual, but valid
	waits        fate = "waits"     // the message stays in the outbox
	unroutable   fate = "exhausted" // the message becomes a dead letter
	unacceptable fate = "unacceptable"
	invalidID    fate = poison.ReasonInvalidID // the message goes to the consumer's quarantine
	collision    fate = poison.ReasonCollision
	undecodable  fate = poison.ReasonUndecodable
)

// edit is a change of one row by hand.
type edit struct {
	set  string // SET clause of an UPDATE
	want fate
	lite fate // expected fate with SQLite, if it differs
}

func (e edit) fate(w *world) fate {
	if w.lite() && e.lite != "" {
		return e.lite
	}
	return e.want
}

const skip fate = "skip" // the database does not allow such an edit

func quoted(text string) string { return `'` + text + `'` }

var (
	long   = strings.Repeat("x", 300)
	bulky  = strings.Repeat("x", 200_000)
	manyKV = func() string {
		var b strings.Builder
		for i := range 8000 {
			fmt.Fprintf(&b, `,"key-%d":"a value of some length"`, i)
		}
		return `{` + b.String()[1:] + `}`
	}()
)

var outboxEdits = map[string]edit{
	"id is empty":                 {set: `message_id = ''`, want: invalidID},
	"id is NULL":                  {set: `message_id = NULL`, want: refused},
	"id of 300 bytes":             {set: `message_id = ` + quoted(long), want: invalidID},
	"id of 256 bytes":             {set: `message_id = ` + quoted(long[:256]), want: invalidID},
	"id of 255 bytes":             {set: `message_id = ` + quoted(long[:255]), want: delivered},
	"id of spaces":                {set: `message_id = '   '`, want: delivered},
	"id with line ends":           {set: "message_id = 'a\r\n\tb'", want: delivered},
	"id with quotes":              {set: `message_id = '"\''{},'`, want: delivered},
	"id of emoji":                 {set: `message_id = '🜚日本'`, want: delivered},
	"id with bytes of no text":    {set: `message_id = CAST(x'ff00fe' AS TEXT)`, want: skip, lite: unacceptable},
	"id with a NUL":               {set: `message_id = 'a' || char(0) || 'b'`, want: refused, lite: unacceptable},
	"topic with bytes of no text": {set: `topic = CAST(x'ff00fe' AS TEXT)`, want: skip, lite: unacceptable},
	"key with bytes of no text":   {set: `ordering_key = CAST(x'ff00fe' AS TEXT)`, want: skip, lite: unacceptable},

	"topic is empty":         {set: `topic = ''`, want: unroutable},
	"topic is NULL":          {set: `topic = NULL`, want: refused},
	"topic of 300 bytes":     {set: `topic = ` + quoted(long), want: unacceptable, lite: unroutable},
	"topic of nobody":        {set: `topic = 'nobody'`, want: unroutable},
	"topic of spaces":        {set: `topic = ' '`, want: unroutable},
	"topic of other letters": {set: `topic = 'EVENTS'`, want: unroutable},
	"topic with slashes":     {set: `topic = '../../events'`, want: unroutable},
	"topic with wildcards":   {set: `topic = 'ev*nts.#'`, want: unroutable},
	"topic of the broker":    {set: `topic = 'amq.fake'`, want: unroutable},
	"topic of emoji":         {set: `topic = '🜚'`, want: unroutable},

	"key is empty":              {set: `ordering_key = ''`, want: delivered},
	"key of 300 bytes":          {set: `ordering_key = ` + quoted(long), want: delivered},
	"key of 3,000 bytes":        {set: `ordering_key = ` + quoted(strings.Repeat(long, 10)), want: refused, lite: delivered},
	"key of odd letters":        {set: `ordering_key = '"{},\''🜚'`, want: delivered},
	"key that metadata denies":  {set: `ordering_key = 'a', metadata = '{"once_ordering_key":"b"}'`, want: delivered},
	"key in the metadata alone": {set: `metadata = '{"once_ordering_key":"b"}'`, want: delivered},

	"slot is negative":  {set: `slot = -1`, want: refused},
	"slot of nobody":    {set: `slot = 64`, want: refused},
	"slot is highest":   {set: `slot = 32767`, want: refused},
	"slot over all":     {set: `slot = 70000`, want: refused},
	"slot is NULL":      {set: `slot = NULL`, want: refused},
	"slot is text":      {set: `slot = 'first'`, want: refused},
	"slot of another":   {set: `slot = (slot + 1) % 64`, want: delivered},
	"slot of its place": {set: `slot = slot`, want: delivered},

	"payload is NULL": {set: `payload = NULL`, want: refused},
	"payload is text": {set: `payload = 'payload is text'`, want: delivered},

	"metadata is NULL":              {set: `metadata = NULL`, want: refused},
	"metadata is empty":             {set: `metadata = ''`, want: refused, lite: unacceptable},
	"metadata is no JSON":           {set: `metadata = '{'`, want: refused, lite: unacceptable},
	"metadata has a comma too many": {set: `metadata = '{"a":"b",}'`, want: refused, lite: unacceptable},
	"metadata is two objects":       {set: `metadata = '{}{}'`, want: refused, lite: unacceptable},
	"metadata is an array":          {set: `metadata = '[]'`, want: unacceptable},
	"metadata is a number":          {set: `metadata = '1'`, want: unacceptable},
	"metadata is text":              {set: `metadata = '"{}"'`, want: unacceptable},
	"metadata is true":              {set: `metadata = 'true'`, want: unacceptable},
	"metadata is null":              {set: `metadata = 'null'`, want: delivered},
	"metadata with a number":        {set: `metadata = '{"a":1}'`, want: unacceptable},
	"metadata with an array":        {set: `metadata = '{"a":["b"]}'`, want: unacceptable},
	"metadata with an object":       {set: `metadata = '{"a":{"b":"c"}}'`, want: unacceptable},
	"metadata with true":            {set: `metadata = '{"a":true}'`, want: unacceptable},
	"metadata with null":            {set: `metadata = '{"a":null}'`, want: delivered},
	"metadata with an empty key":    {set: `metadata = '{"":""}'`, want: delivered},
	"metadata with a key twice":     {set: `metadata = '{"a":"b","a":"c"}'`, want: delivered},
	"metadata with a NUL escape":    {set: `metadata = '{"a":"\u0000"}'`, want: delivered},
	"metadata with half an emoji":   {set: `metadata = '{"a":"\ud83d"}'`, want: delivered},
	"metadata with spaces":          {set: "metadata = ' {\n\"a\" :\t\"b\" } '", want: delivered},
	"metadata with a long key":      {set: `metadata = '{"` + long + `":"b"}'`, want: unacceptable, lite: delivered},
	"metadata with a long value":    {set: `metadata = '{"a":"` + bulky + `"}'`, want: unacceptable, lite: delivered},
	"metadata with many keys":       {set: `metadata = '` + manyKV + `'`, want: unacceptable, lite: delivered},
	"metadata with BCC":             {set: `metadata = '{"BCC":"events_worker","bcc":"q"}'`, want: unacceptable, lite: delivered},
	"metadata with CC":              {set: `metadata = '{"CC":"events_worker"}'`, want: unacceptable, lite: delivered},
	"metadata with x-death":         {set: `metadata = '{"x-death":"[]","x-delivery-count":"1000"}'`, want: unacceptable, lite: delivered},
	"metadata with an expiration":   {set: `metadata = '{"expiration":"soon"}'`, want: unacceptable, lite: delivered},
	"metadata with a user":          {set: `metadata = '{"user-id":"nobody"}'`, want: unacceptable, lite: delivered},
	"metadata with another id":      {set: `metadata = '{"_watermill_message_uuid":"other"}'`, want: delivered},
	"metadata with our answers":     {set: `metadata = '{"once_redelivered":"true","once_delivery_count":"-1"}'`, want: delivered, lite: delivered},
	"metadata with a due time":      {set: `metadata = '{"once_due_at":"never"}'`, want: delivered},
	"metadata with a broken trace":  {set: `metadata = '{"traceparent":"00-zz"}'`, want: delivered},

	"created never":         {set: `created_at = 'infinity'`, want: delivered, lite: refused},
	"created for ever":      {set: `created_at = '-infinity'`, want: delivered, lite: refused},
	"created before Christ": {set: `created_at = '4000-01-01 BC'`, want: delivered, lite: refused},
	"created is NULL":       {set: `created_at = NULL`, want: refused},
	"created by Go's zero":  {set: `created_at = '0001-01-01Z'`, want: delivered, lite: refused},
	"due for ever":          {set: `due_at = '-infinity'`, want: refused},
	"due never":             {set: `due_at = 'infinity'`, want: refused},
	"due in 200,000 years":  {set: `due_at = '200000-01-01'`, want: waits, lite: refused},
	"due long ago":          {set: `due_at = '4000-01-01 BC'`, want: delivered, lite: refused},
	"due on no day":         {set: `due_at = '2026-02-30'`, want: refused},
	"due by number":         {set: `due_at = -9223372036854775808`, want: refused, lite: delivered},
	"due by fraction":       {set: `due_at = 0.5`, want: refused},

	"attempts are negative":           {set: `attempts = -1`, want: refused},
	"attempts are least":              {set: `attempts = -2147483648`, want: refused},
	"attempts are most":               {set: `attempts = 2147483647`, want: delivered},
	"attempts are over all":           {set: `attempts = 2147483648`, want: refused, lite: delivered},
	"attempts are NULL":               {set: `attempts = NULL`, want: refused},
	"attempts are text":               {set: `attempts = 'many'`, want: refused},
	"attempts are most, for nobody":   {set: `attempts = 2147483647, topic = 'nobody'`, want: unroutable},
	"attempts of 63 bits, for nobody": {set: `attempts = 9223372036854775807, topic = 'nobody'`, want: refused, lite: unroutable},
	"unknown is NULL":                 {set: `unknown = NULL`, want: refused},
	"unknown is true":                 {set: `unknown = true`, want: delivered},
	"unknown is text":                 {set: `unknown = 'perhaps'`, want: refused},
	"last error of a megabyte":        {set: `last_error = ` + quoted(strings.Repeat("x", 1<<20)), want: delivered},

	"position of another": {set: `position = position - 1`, want: refused},
	"position is NULL":    {set: `position = NULL`, want: refused},
	"position is 0":       {set: `position = 0`, want: refused},
}

// Rows of the outbox that an operator has edited, or that another program has written,
// have the expected fates.
func TestOutboxRowsEditedByHand(t *testing.T) {
	t.Parallel()
	eachWorld(t, lease, func(w *world) {
		happened := map[string]error{}
		for name, e := range outboxEdits {
			if e.fate(w) == skip {
				continue
			}
			w.put(name + " before")
			w.put(name)
			w.put(name + " after")
			_, happened[name] = w.db.ExecContext(w.Context(), `UPDATE once_outbox SET `+e.set+` WHERE message_id = $1`, name)
		}
		w.consume()
		w.forward()
		waiting := 0
		for _, e := range outboxEdits {
			if e.fate(w) == waits {
				waiting++
			}
		}
		w.settled(3*len(happened), waiting)
		found := w.fates()
		for name, err := range happened {
			w.Run(name, func(t *testing.T) {
				neighbours(t, found, name)
				e, got := outboxEdits[name], found[name]
				if err != nil && len(got) == 1 && got[0] == delivered {
					got[0] = refused // the row must be unchanged
				}
				if len(got) != 1 || got[0] != e.fate(w) {
					t.Errorf("%s: its fates are %v, want %s (%v)", e.set, got, e.fate(w), err)
				}
			})
		}
	})
}

// settled waits until the given number of messages have reached their fates. The
// argument waiting is the number of messages that may stay in the outbox.
func (w *world) settled(messages, waiting int) {
	w.Helper()
	w.eventually("all messages have reached their fates", func() bool {
		left := w.count(`once_outbox`)
		return left <= waiting && w.count(`once_parked WHERE state IN ('waiting', 'held')`) == 0 &&
			left+w.count(`effects`)+w.count(`once_outbox_dead`)+w.count(`once_parked WHERE state = 'quarantined'`) >= messages
	})
}

// fates returns the fates of all messages, by payload.
func (w *world) fates() map[string][]fate {
	w.Helper()
	found := map[string][]fate{}
	note := func(payload []byte, f fate) { found[string(payload)] = append(found[string(payload)], f) }
	for f, query := range map[fate]string{
		delivered: `SELECT payload FROM effects`, waits: `SELECT payload FROM once_outbox`,
	} {
		rows, err := w.db.QueryContext(w.Context(), query)
		kit.OK(w, err)
		defer rows.Close()
		for rows.Next() {
			var payload []byte
			kit.OK(w, rows.Scan(&payload))
			note(payload, f)
		}
		kit.OK(w, rows.Err())
	}
	letters, err := w.letters()
	kit.OK(w, err)
	for _, l := range letters {
		note(l.Payload, fate(l.Reason))
	}
	page, err := w.consumer.Quarantine().List(w.Context(), operate.Filter{Limit: 1000})
	kit.OK(w, err)
	for _, e := range page.Rows {
		if e.Message == nil {
			note([]byte(e.MessageID), fate(e.Reason))
		} else {
			note(e.Message.Payload, fate(e.Reason))
		}
	}
	return found
}

func (w *world) letters() ([]dead.Letter, error) {
	d, err := dead.New(w.db, operate.Config{Schema: w.config})
	if err != nil {
		return nil, err
	}
	page, err := d.List(w.Context(), operate.Filter{Limit: 1000})
	for i := range page.Rows {
		if err == nil {
			page.Rows[i], err = d.Get(w.Context(), page.Rows[i].ID)
		}
	}
	return page.Rows, err
}

// neighbours checks that the valid messages before and after a case were handled once.
func neighbours(t *testing.T, found map[string][]fate, name string) {
	t.Helper()
	for _, id := range []string{name + " before", name + " after"} {
		if got := found[id]; len(got) != 1 || got[0] != delivered {
			t.Errorf("%q: its fates are %v, want that it is delivered once", id, got)
		}
	}
}
