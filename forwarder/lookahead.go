package forwarder

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/watermill-once/once/forwarder/internal/dispatch"
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/outboxrow"
	"github.com/watermill-once/once/schema"
)

// lookaheadRows is the number of rows that a lookahead examines: 100 lookaheads examine a million
// rows, and a sweep never waits long for one. SQLite is used without a broker and needs none.
func lookaheadRows(config schema.Config) int {
	if config.Dialect == schema.SQLite {
		return 0
	}
	return 10_000
}

// ahead is the result of examining rows: the positions to read, the hashes of their keys, and the
// examined part of the outbox.
type ahead struct {
	positions []int64
	hashes    map[int64]int64
	reach     dispatch.Reach
}

type lookaheadQueries struct {
	peek                dialect.Statement
	snapshotOfLookahead string
	examine, ahead      string
}

func newLookaheadQueries(d dialect.Dialect) lookaheadQueries {
	return lookaheadQueries{
		peek: d.Statement("", peek), snapshotOfLookahead: snapshotOfLookahead(d), examine: examineQuery(d), ahead: aheadQuery(d),
	}
}

// lookAhead first checks whether there is a row to examine, because usually there is none. It
// examines rows without their payloads, and then reads those that were found.
func (s *store) lookAhead(ctx context.Context, read *dispatch.Read, r *reader) (looked ahead, err error) {
	if s.alone && read.Late == read.Passed {
		if err := s.readWithState(ctx, s.sql.peek, []any{read.From}, r); err != nil || !r.state.rows {
			return ahead{reach: dispatch.Reach{Covered: dispatch.Everything}}, err
		}
	}
	err = s.read(ctx, func(tx *sql.Tx) error {
		r.rows, r.state, r.began = nil, outboxState{}, time.Now()
		err := r.state.scan(tx.QueryRowContext(ctx, s.sql.snapshotOfLookahead))
		if err = cmp.Or(err, r.state.writable()); err != nil {
			return err
		}
		if looked, err = s.examine(ctx, tx, read); err != nil || len(looked.positions) == 0 {
			return err
		}
		rows, err := tx.QueryContext(ctx, s.sql.ahead, s.dialect.List(looked.positions), s.dialect.List(read.Known),
			s.dialect.List(read.Slots), s.dialect.Strings(read.Keys), s.dialect.Strings(read.Topics))
		if err != nil {
			return err
		}
		defer rows.Close()
		if err := r.scanAll(rows); err != nil {
			return err
		}
		return rows.Err()
	})
	return looked, err
}

// examine uses a single statement, which sees one snapshot. A row must not be found without the
// earlier rows of its key that were committed before it; with two statements, these could be
// committed after the first one, and the row before the second.
func (s *store) examine(ctx context.Context, tx *sql.Tx, read *dispatch.Read) (ahead, error) {
	var (
		topics, tenants []string
		highest, rows   int64
		more            bool
		taken, skipped  string
	)
	for _, g := range read.Groups {
		topics, tenants = append(topics, g.Topic), append(tenants, g.Tenant)
	}
	err := tx.QueryRowContext(ctx, s.sql.examine, read.From, s.dialect.List(read.Known), s.dialect.List(read.Slots),
		s.dialect.Strings(read.Keys), read.Limit, read.PerGroup, s.dialect.Strings(read.Topics), read.Examine,
		s.dialect.Strings(topics), s.dialect.Strings(tenants), read.Late, read.Passed,
		s.dialect.Strings(read.Pauses.Topics), s.dialect.Strings(read.Pauses.Tenants)).Scan(&highest, &rows, &more, &taken, &skipped)
	if err != nil {
		return ahead{}, err
	}
	looked := ahead{hashes: map[int64]int64{}, reach: dispatch.Reach{Highest: highest, Covered: highest, More: more}}
	if rows < int64(read.Examine) {
		looked.reach.Covered = dispatch.Everything
	}
	err = pairs(taken, func(position, hash int64) {
		looked.positions = append(looked.positions, position)
		looked.hashes[position] = hash
	})
	if err != nil {
		return ahead{}, err
	}
	looked.reach.Skipped = make([]dispatch.Skipped, 0, strings.Count(skipped, ":"))
	err = pairs(skipped, func(position, hash int64) {
		looked.reach.Skipped = append(looked.reach.Skipped, dispatch.Skipped{Position: position, KeyHash: hash})
	})
	return looked, err
}

// complete sets the hashes of the keys of the rows that were read, and returns the examined part.
// Rows that no longer exist, and those beyond the limit of bytes, become skipped rows.
func (a ahead) complete(read []*dispatch.Message) dispatch.Reach {
	for _, m := range read {
		m.KeyHash = a.hashes[m.Position]
		delete(a.hashes, m.Position)
	}
	for position, hash := range a.hashes {
		a.reach.More = true
		a.reach.Skipped = append(a.reach.Skipped, dispatch.Skipped{Position: position, KeyHash: hash})
	}
	return a.reach
}

// pairs calls f for every pair of numbers in a text such as "1:2,3:4".
func pairs(text string, f func(a, b int64)) error {
	if text == "" {
		return nil
	}
	for pair := range strings.SplitSeq(text, ",") {
		first, second, _ := strings.Cut(pair, ":")
		a, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			return fmt.Errorf("forwarder: lookahead: %w", err)
		}
		b, err := strconv.ParseInt(second, 10, 64)
		if err != nil {
			return fmt.Errorf("forwarder: lookahead: %w", err)
		}
		f(a, b)
	}
	return nil
}

// peek is stateOfRead with the flag rowsToRead, set if there is a row above position $1. ORDER BY
// makes PostgreSQL use the index even if its estimates are wrong.
var peek = stateWith(fmt.Sprintf(
	`CASE WHEN (SELECT 1 FROM {outbox} WHERE position > $1 ORDER BY position LIMIT 1) IS NOT NULL THEN %d ELSE 0 END`, rowsToRead))

// examineQuery returns a query that examines the first $8 rows above the position $1. The result
// has five values: the highest position, the number of rows, whether rows were left out because of
// a limit or their key, the rows to read, and the other rows with a key. The last two are lists of
// position:hash of the key.
//
// A group contains the rows of one topic and one tenant. The parameters are those of
// mayBeRead, and:
//
//   - $6: the maximum number of rows of a group,
//   - $9 and $10: the topics and the tenants of the groups to leave out,
//   - $11: if a key has a row above this position and up to $1 that is not in memory,
//     the query leaves out the key, because that row must be sent first,
//   - $12: the query adds the first row of each key above $11 and up to this position
//     to the list of other rows,
//   - $13 and $14: the paused topics and the paused tenants.
//
// PostgreSQL overestimates the cost, and would compile this query (JIT), which takes longer than
// running it. So the transaction must turn JIT off first.
func examineQuery(d dialect.Dialect) string {
	return d.SQL(`
		WITH examined AS MATERIALIZED (
			SELECT position, ordering_key, topic, tenant, position IN {list $2 bigint} AS known,
			       CASE WHEN due_at IS NOT NULL THEN 1 = 0
			            WHEN (topic, tenant) IN (SELECT g.topic, g.tenant
			                                     FROM unnest($9::text::text[], $10::text::text[]) AS g(topic, tenant)) THEN 1 = 0
			            WHEN topic IN {list $13 text} OR tenant IN {list $14 text} THEN 1 = 0
			            ELSE ` + mayBeRead + ` END AS may
			FROM (SELECT o.position, o.ordering_key, o.topic, o.slot, o.due_at, ` + quickTenant(d) + ` AS tenant
			      FROM {outbox} AS o WHERE o.position > $1 ORDER BY o.position LIMIT $8) AS o),
		late AS MATERIALIZED (
			SELECT DISTINCT ordering_key FROM {outbox} AS o
			WHERE position > $11 AND position <= $1 AND position NOT IN {list $2 bigint}
			  AND EXISTS (SELECT 1 FROM examined AS e WHERE e.may AND e.ordering_key IS NOT NULL)
			  AND ordering_key IN (SELECT e.ordering_key FROM examined AS e WHERE e.may)),
		taken AS MATERIALIZED (
			SELECT position, ordering_key FROM (
				SELECT position, ordering_key, row_number() OVER (PARTITION BY topic, tenant ORDER BY position) AS n
				FROM (SELECT position, ordering_key, topic, tenant FROM examined
				      WHERE may AND (ordering_key IS NULL OR ordering_key NOT IN (SELECT l.ordering_key FROM late AS l))
				      ORDER BY position LIMIT $5) AS m) AS n
			WHERE n <= $6),
		skipped AS (
			SELECT e.position, e.ordering_key FROM examined AS e
			WHERE e.ordering_key IS NOT NULL AND NOT e.known AND e.position NOT IN (SELECT t.position FROM taken AS t)
			UNION ALL
			SELECT MIN(o.position), o.ordering_key FROM {outbox} AS o
			WHERE o.position > $11 AND o.position <= $12 AND o.ordering_key IS NOT NULL AND o.position NOT IN {list $2 bigint}
			GROUP BY o.ordering_key)
		SELECT (SELECT COALESCE(MAX(e.position), 0) FROM examined AS e), (SELECT COUNT(*) FROM examined),
		       (SELECT COUNT(*) FROM examined AS e WHERE e.may) > (SELECT COUNT(*) FROM taken),
		       COALESCE((SELECT string_agg(t.position || ':' || COALESCE(hashtext(t.ordering_key), 0), ',') FROM taken AS t), ''),
		       COALESCE((SELECT string_agg(s.position || ':' || hashtext(s.ordering_key), ',') FROM skipped AS s), '')`)
}

// quickTenant has the same value as outboxrow.Tenant in a seventh of the time: it takes the text
// between the quotes after the field's name, and decodes the metadata only if this text contains an
// escape.
func quickTenant(d dialect.Dialect) string {
	const text = `split_part(split_part(CAST(o.metadata AS text), '"` + meta.TenantID + `":', 2), '"', 2)`
	return `CASE WHEN strpos(` + text + `, '\') > 0 THEN ` + outboxrow.Tenant(d) + ` ELSE substr(` + text + `, 1, 255) END`
}

// aheadQuery reads the rows at the positions $1 that still exist. $5 are the excluded topics. For
// the others see mayBeRead.
func aheadQuery(d dialect.Dialect) string {
	return d.SQL(`SELECT ` + columnsOfRow + `, 0 AS due FROM {outbox} AS o
	              WHERE position {among $1 bigint}
	                AND CASE WHEN due_at IS NULL THEN ` + strings.ReplaceAll(mayBeRead, "$7", "$5") + ` ELSE 1 = 0 END
	              ORDER BY position`)
}
