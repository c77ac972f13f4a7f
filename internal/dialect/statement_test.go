package dialect_test

import (
	"database/sql"
	"math"
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/test/kit"
)

func everyByte() []byte {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	return all
}

// Arguments arrive unchanged, whatever the session's settings for strings are.
func TestStatementArgumentsArriveUnchanged(t *testing.T) {
	db := kit.Postgres(t)
	d := newDialect(t, db)
	get := d.Statement("", `SELECT ($1::text IS NULL) || '|' || coalesce($1, '') || '|' || encode($2, 'hex') || '|' || coalesce($1, '')`)
	texts := []string{
		"", "0192f0c8-5a5e-7b3c-8d2e-1f0a2b3c4d5e", "orders/17: a.b_c", `'`, `''`, `\`, `\'`, `\\'`, `'; DROP TABLE once_inbox; --`,
		`E'\x27`, "$1", "$2::text", "%d %s", "\n\r\t\b\x01\x7f", "é", "日本語", "\U0001F600", "\uFFFD", "\u00a0", "\u0085", "\u02bc", `\U00000027`,
		string([]rune{0xbf, 0x27}), strings.Repeat("'", 255), "/* ", "{inbox}", "?1",
	}
	for _, setting := range []string{
		`SET LOCAL standard_conforming_strings = on`,
		`SET LOCAL standard_conforming_strings = off; SET LOCAL backslash_quote = on; SET LOCAL escape_string_warning = off`,
	} {
		kit.OK(t, d.Write(t.Context(), db.DB, func(tx *sql.Tx) error {
			if _, err := tx.ExecContext(t.Context(), setting); err != nil {
				return err
			}
			for _, text := range texts {
				var got string
				if err := get.Get(t.Context(), tx, &got, text, []byte{0xff, 0, '\''}); err != nil {
					return err
				}
				if want := "false|" + text + "|ff0027|" + text; got != want {
					t.Errorf("%s: %q arrived as %q", setting, text, got)
				}
			}
			var got string
			if err := get.Get(t.Context(), tx, &got, nil, everyByte()); err != nil {
				return err
			}
			if !strings.HasPrefix(got, "true||000102") || !strings.HasSuffix(got, "fdfeff|") {
				t.Errorf("NULL and every byte arrived as %q", got)
			}
			return nil
		}))
	}
}

// A number gets the type of the column that it is compared with or stored in.
func TestStatementNumbersTakeTypeOfContext(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		d := newDialect(t, db)
		kit.Exec(t, db, `CREATE TABLE numbers (n bigint NOT NULL)`)
		insert := d.Statement("", `INSERT INTO numbers (n) VALUES ($1)`)
		next := d.Statement("", `SELECT n FROM numbers WHERE n >= $1 ORDER BY n LIMIT 1`)
		err := d.Write(t.Context(), db.DB, func(tx *sql.Tx) error {
			for _, n := range []int64{math.MinInt64, -1, 0, 9, math.MaxInt64} {
				if _, err := insert.Exec(t.Context(), tx, n); err != nil {
					return err
				}
			}
			for n, want := range map[int64]int64{math.MinInt64: math.MinInt64, -5: -1, 0: 0, 1: 9, 10: math.MaxInt64} {
				var got int64
				if err := next.Get(t.Context(), tx, &got, n); err != nil || got != want {
					t.Errorf("after %d follows %d, want %d: %v", n, got, want, err)
				}
			}
			return nil
		})
		kit.Check(t, err)
	})
}

// A text that no column can hold is sent unchanged, and the server refuses it.
func TestStatementRefusesInvalidText(t *testing.T) {
	db := kit.Postgres(t)
	d := newDialect(t, db)
	get := d.Statement("", `SELECT $1::text`)
	for _, text := range []string{"a\x00b", "a\xffb", "\xc3", "\xed\xa0\x80"} {
		err := d.Write(t.Context(), db.DB, func(tx *sql.Tx) error {
			var got string
			return get.Get(t.Context(), tx, &got, text)
		})
		if dialect.State(err) == "" {
			t.Errorf("%q: %v", text, err)
		}
	}
	err := d.Write(t.Context(), db.DB, func(tx *sql.Tx) error {
		_, err := get.Exec(t.Context(), tx, 17)
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "int") {
		t.Error(err)
	}
}

// The statements before the query take effect, and do not change its result.
func TestStatementResultBelongsToTheQuery(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		d := newDialect(t, db)
		kit.Exec(t, db, `CREATE TABLE names (name text PRIMARY KEY)`)
		insert := d.Statement(`SET LOCAL lock_timeout = 4321; SET LOCAL statement_timeout = 60000`,
			`INSERT INTO names (name) VALUES ($1), ($2) ON CONFLICT DO NOTHING`)
		for _, test := range []struct {
			first, second string
			inserted      int64
		}{{"a", "it's", 2}, {"it's", "b", 1}, {"a", "b", 0}} {
			kit.OK(t, d.Write(t.Context(), db.DB, func(tx *sql.Tx) error {
				result, err := insert.Exec(t.Context(), tx, test.first, test.second)
				if err != nil {
					return err
				}
				if n, err := result.RowsAffected(); err != nil || n != test.inserted {
					t.Errorf("%d rows, want %d: %v", n, test.inserted, err)
				}
				if d.SQLite() {
					return nil
				}
				var timeout string
				err = tx.QueryRowContext(t.Context(), `SHOW lock_timeout`).Scan(&timeout)
				if timeout != "4321ms" {
					t.Errorf("lock_timeout is %s", timeout)
				}
				return err
			}))
		}
		count := d.Statement("", `SELECT count(*) FROM names WHERE name = $1`)
		err := d.Write(t.Context(), db.DB, func(tx *sql.Tx) error {
			var n int
			if err := count.Get(t.Context(), tx, &n, "it's"); err != nil || n != 1 {
				t.Errorf("%d: %v", n, err)
			}
			return nil
		})
		kit.Check(t, err)
	})
}
