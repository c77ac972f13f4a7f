package badinput

import (
	"encoding/hex"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/poison"
)

const (
	permanent fate = poison.ReasonPermanent
	crashed   fate = poison.ReasonCrashed
	stays     fate = "stays" // the row stays unchanged, because it has no consumer or is due later
)

var parkedEdits = map[string]edit{
	"envelope is NULL":                   {set: `envelope = NULL`, want: refused},
	"envelope is empty":                  {set: `envelope = {}`, want: undecodable},
	"envelope of one byte":               {set: `envelope = {01}`, want: undecodable},
	"envelope of version 0":              {set: `envelope = {00000000}`, want: undecodable},
	"envelope of version 255":            {set: `envelope = {ff000000}`, want: undecodable},
	"envelope of text":                   {set: `envelope = 'not an envelope'`, want: undecodable},
	"envelope of zeros":                  {set: `envelope = {` + strings.Repeat("00", 1000) + `}`, want: undecodable},
	"envelope with more behind":          {set: `envelope = {0100000000}`, want: undecodable},
	"envelope with an id past its end":   {set: `envelope = {0105616263}`, want: undecodable},
	"envelope with an endless id":        {set: `envelope = {01ffffffffffffffffff01}`, want: undecodable},
	"envelope with a number of 11 bytes": {set: `envelope = {01ffffffffffffffffffffff01}`, want: undecodable},
	"envelope with 2^63 headers":         {set: `envelope = {0100ffffffffffffffff7f}`, want: undecodable},
	"envelope with half a header":        {set: `envelope = {0100010161}`, want: undecodable},
	"envelope with half a payload":       {set: `envelope = {0101610005616263}`, want: undecodable},
	"envelope without its end":           {set: `envelope = substr(envelope, 1, 12)`, want: undecodable},

	"state is unknown":           {set: `state = 'unknown'`, want: refused},
	"state is empty":             {set: `state = ''`, want: refused},
	"state is NULL":              {set: `state = NULL`, want: refused},
	"state in capitals":          {set: `state = 'WAITING'`, want: refused},
	"held without a key":         {set: `state = 'held'`, want: refused},
	"held behind nobody":         {set: `state = 'held', ordering_key = 'nobody'`, want: delivered},
	"resolved by hand":           {set: `state = 'resolved'`, want: stays},
	"discarded by hand":          {set: `state = 'discarded'`, want: stays},
	"key of a free message":      {set: `ordering_key = 'k'`, want: delivered},
	"key is empty":               {set: `ordering_key = ''`, want: delivered},
	"key of 300 bytes":           {set: `ordering_key = ` + quoted(long), want: delivered},
	"due never":                  {set: `due_at = 'infinity'`, want: refused},
	"due for ever":               {set: `due_at = '-infinity'`, want: refused},
	"due is NULL":                {set: `due_at = NULL`, want: refused},
	"due in 200,000 years":       {set: `due_at = '200000-01-01'`, want: stays, lite: refused},
	"due before Christ":          {set: `due_at = '4000-01-01 BC'`, want: delivered, lite: refused},
	"due by text":                {set: `due_at = 'soon'`, want: refused},
	"owned by nobody":            {set: `owner = 'nobody'`, want: delivered},
	"a token of nobody":          {set: `token = 'nobody'`, want: delivered},
	"owner and token of bytes":   {set: `owner = '', token = '🜚'`, want: delivered},
	"attempts are negative":      {set: `attempts = -1`, want: refused},
	"attempts are text":          {set: `attempts = 'many'`, want: refused},
	"attempts are most":          {set: `attempts = 2147483647`, want: delivered},
	"fail: attempts are most":    {set: `attempts = 2147483647`, want: permanent},
	"fail: attempts of 63 bits":  {set: `attempts = 9223372036854775807`, want: refused, lite: permanent},
	"rounds are negative":        {set: `rounds = -1`, want: refused},
	"rounds are most":            {set: `rounds = 2147483647`, want: delivered},
	"fail: rounds are most":      {set: `rounds = 2147483647`, want: permanent},
	"crashes are negative":       {set: `crashes = -1`, want: refused},
	"crashed once":               {set: `crashes = 1`, want: delivered},
	"crashed to the budget":      {set: `crashes = 3`, want: crashed},
	"crashes are 2^30 + 1":       {set: `crashes = 1073741825`, want: crashed},
	"crashes are most":           {set: `crashes = 2147483647`, want: crashed},
	"crashes of 63 bits":         {set: `crashes = 9223372036854775807`, want: refused, lite: crashed},
	"crashes are NULL":           {set: `crashes = NULL`, want: refused},
	"replays are negative":       {set: `replays = -1`, want: refused},
	"replays are most":           {set: `replays = 2147483647`, want: delivered},
	"fail: replays are most":     {set: `replays = 2147483647`, want: permanent},
	"part of no replay":          {set: `replay_id = -1`, want: delivered},
	"edited from nothing":        {set: `edited_from = 9223372036854775807`, want: delivered},
	"origin is empty":            {set: `origin = ''`, want: delivered},
	"early for ever":             {set: `early_since = '-infinity', early_of = 'a', early_version = 1`, want: delivered, lite: refused},
	"early never":                {set: `early_since = 'infinity', early_of = 'a', early_version = 2`, want: delivered, lite: refused},
	"early as a negative one":    {set: `early_of = 'a', early_version = -9223372036854775808`, want: delivered},
	"created never":              {set: `created_at = 'infinity'`, want: delivered, lite: refused},
	"created for ever":           {set: `created_at = '-infinity'`, want: delivered, lite: refused},
	"created before Christ":      {set: `created_at = '4000-01-01 BC'`, want: delivered, lite: refused},
	"created in 200,000 years":   {set: `created_at = '200000-01-01'`, want: delivered, lite: refused},
	"created is NULL":            {set: `created_at = NULL`, want: refused},
	"created by 63 bits":         {set: `created_at = 9223372036854775807`, want: refused, lite: delivered},
	"created by 63 bits less":    {set: `created_at = -9223372036854775808`, want: refused, lite: delivered},
	"fail: created for ever":     {set: `created_at = '-infinity'`, want: permanent, lite: refused},
	"fail: created never":        {set: `created_at = 'infinity'`, want: permanent, lite: refused},
	"fail: failed first never":   {set: `first_failed_at = 'infinity'`, want: permanent, lite: refused},
	"fail: failed last for ever": {set: `last_failed_at = '-infinity'`, want: permanent, lite: refused},
	"fail: finished never":       {set: `finished_at = 'infinity'`, want: permanent, lite: refused},
	"consumer is empty":          {set: `consumer = ''`, want: stays},
	"consumer is NULL":           {set: `consumer = NULL`, want: refused},
	"consumer of 300 bytes":      {set: `consumer = ` + quoted(long), want: stays},
	"topic of nobody":            {set: `topic = 'nobody'`, want: stays},
	"topic is empty":             {set: `topic = ''`, want: stays},
	"id is empty":                {set: `message_id = ''`, want: delivered},
	"id is another's":            {set: `message_id = 'nobody''s'`, want: delivered},
	"id of 300 bytes":            {set: `message_id = ` + quoted(long), want: delivered},
	"id is NULL":                 {set: `message_id = NULL`, want: refused},
	"digest is empty":            {set: `digest = {}`, want: delivered},
	"digest of one byte":         {set: `digest = {ff}`, want: delivered},
	"digest is NULL":             {set: `digest = NULL`, want: refused},
	"fail: digest is empty":      {set: `digest = {}`, want: permanent},
	"tenant of 300 bytes":        {set: `tenant = ` + quoted(long), want: delivered},
	"reason is undecodable":      {set: `reason = 'undecodable'`, want: undecodable},
	"reason of nobody":           {set: `reason = 'whim'`, want: delivered},
	"error of a megabyte":        {set: `error = ` + quoted(strings.Repeat("x", 1<<20)), want: delivered},
	"error is NULL":              {set: `error = NULL`, want: refused},
	"fingerprint of 300 bytes":   {set: `fingerprint = ` + quoted(long), want: delivered},
	"id of the row is another's": {set: `id = id - 1`, want: refused},
	"id of the row is 0":         {set: `id = 0`, want: refused},
}

var hexBytes = regexp.MustCompile(`\{([0-9a-f]*)\}`)

// sql returns text with byte literals in the syntax of the database.
func (w *world) sql(text string) string {
	if w.lite() {
		return hexBytes.ReplaceAllString(text, `x'$1'`)
	}
	return hexBytes.ReplaceAllString(text, `'\x$1'::bytea`)
}

// Rows of parked messages that were edited by hand have the expected fates. The valid
// messages before and after each case have rows of the same age.
func TestParkedRowsEditedByHand(t *testing.T) {
	kit.Long(t)
	const lease = time.Second // the test waits until the leases of invalid rows have ended
	eachWorld(t, lease, func(w *world) {
		store, err := parkedrows.NewStore(w.db, w.config)
		kit.OK(t, err)
		happened, envelopes := map[string]error{}, map[string]string{}
		staying := 0
		for name, e := range parkedEdits {
			for _, id := range []string{name + " before", name, name + " after"} {
				kit.OK(t, store.Deliver(t.Context(), topic, []string{consumer}, message.NewMessage(id, []byte(id))))
			}
			_, happened[name] = w.db.ExecContext(w.Context(), w.sql(`UPDATE once_parked SET `+e.set+` WHERE message_id = $1`), name)
			if e.fate(w) == stays {
				staying++
			}
		}
		for name := range parkedEdits {
			var envelope []byte
			row := w.db.QueryRowContext(w.Context(), `SELECT envelope FROM once_parked WHERE message_id = $1`, name)
			if row.Scan(&envelope) == nil {
				envelopes[name] = hex.EncodeToString(envelope)
			}
		}
		w.consume()
		w.eventually("all messages have reached their fates", func() bool {
			return w.count(`effects`)+w.count(`once_parked WHERE state = 'quarantined'`)+staying >= 3*len(parkedEdits)
		})
		found := w.fates()
		for name, err := range happened {
			w.Run(name, func(t *testing.T) {
				neighbours(t, found, name)
				e, got := parkedEdits[name], found[name]
				switch {
				case err != nil && len(got) == 1 && got[0] == delivered:
					got[0] = refused // the row must be unchanged
				case err != nil && len(got) == 1 && got[0] == permanent:
					got[0] = refused
				case len(got) == 0:
					got = []fate{stays}
				}
				if len(got) != 1 || got[0] != e.fate(w) {
					t.Errorf("%s: its fates are %v, want %s (%v)", e.set, got, e.fate(w), err)
				}
			})
		}
		page, err := w.consumer.Quarantine().List(t.Context(), operate.Filter{Limit: 1000})
		kit.OK(t, err)
		for _, e := range page.Rows {
			if kept := hex.EncodeToString(e.Envelope); kept != envelopes[e.MessageID] {
				t.Errorf("%q: the envelope was %s, and is %s", e.MessageID, envelopes[e.MessageID], kept)
			}
		}
		var exported strings.Builder
		if n, err := w.consumer.Quarantine().Export(t.Context(), operate.Filter{}, &exported); err != nil || n != len(page.Rows) {
			t.Errorf("%d of %d were exported: %v", n, len(page.Rows), err)
		}
	})
}
