package roles

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"strings"
)

// grant is one right on a table or on a column.
type grant struct{ right, table, column string }

func (g grant) String() string {
	if g.column == "" {
		return fmt.Sprintf("%s ON %s", g.right, tables.Table(g.table))
	}
	return fmt.Sprintf("%s (%s) ON %s", g.right, g.column, tables.Table(g.table))
}

// grantsOf returns the rights of a role, one by one.
func grantsOf(name string) (grants []grant) {
	for table, list := range may[name] {
		for right := range strings.SplitSeq(list, ", ") {
			right, columns, _ := strings.Cut(strings.TrimSuffix(right, ")"), "(")
			if columns == "" {
				grants = append(grants, grant{right, table, ""})
			}
			for column := range strings.FieldsSeq(columns) {
				grants = append(grants, grant{right, table, column})
			}
		}
	}
	return grants
}

// needsEverything revokes the rights of a role one at a time. Each time it checks that the database
// refuses a statement of the role's work. EXPLAIN is enough, because PostgreSQL checks rights when
// it prepares a plan for execution.
func (p *part) needsEverything(name string) {
	p.Helper()
	conn, err := p.db.Conn(p.Context())
	p.must(err)
	defer conn.Close()
	statements := plans(p.seen())
	run := func() (refusedAt string) {
		for _, s := range statements {
			switch err := s.try(p.Context(), conn); {
			case refused(err):
				return s.text
			case err != nil:
				p.Fatalf("%s: %v: %s", name, err, s.text)
			}
		}
		return ""
	}
	if at := run(); at != "" {
		p.Fatalf("%s: even with all of its rights, this statement is refused: %s", name, at)
	}
	for _, g := range grantsOf(name) {
		p.exec(p.admin, fmt.Sprintf(`REVOKE %s FROM %s`, g, p.prefix+name))
		if run() == "" {
			p.Errorf("%s does not need %s", name, g)
		}
		p.exec(p.admin, fmt.Sprintf(`GRANT %s TO %s`, g, p.prefix+name))
	}
}

// plan is a statement of a role's work that can be tried without an effect.
type plan struct {
	text   string
	params int
	locks  bool // LOCK TABLE has no plan
}

var (
	setting = regexp.MustCompile(`^\s*SET LOCAL [^;]*(;|$)`)
	prepare = regexp.MustCompile(`^PREPARE \S+ AS `)
	param   = regexp.MustCompile(`\$[0-9]+`)
)

// plans returns the statements as plans. It leaves out statements for transactions and settings.
func plans(texts []string) (all []plan) {
	for _, text := range texts {
		for setting.MatchString(text) {
			text = setting.ReplaceAllString(text, "")
		}
		text = prepare.ReplaceAllString(text, "")
		word, _, _ := strings.Cut(strings.TrimSpace(text), " ")
		s := plan{text: text, locks: word == "LOCK"}
		switch strings.ToUpper(strings.TrimSpace(word)) {
		case "SELECT", "INSERT", "UPDATE", "DELETE", "WITH", "LOCK":
			for _, mark := range param.FindAllString(text, -1) {
				var n int
				_, _ = fmt.Sscanf(mark, "$%d", &n)
				s.params = max(s.params, n)
			}
			all = append(all, s)
		}
	}
	return all
}

// try explains the statement in a transaction that it rolls back.
func (s plan) try(ctx context.Context, conn *sql.Conn) error {
	text := `EXPLAIN ` + s.text
	if s.params > 0 {
		nulls := strings.TrimSuffix(strings.Repeat("NULL,", s.params), ",")
		text = `PREPARE tried AS ` + s.text + `; EXPLAIN EXECUTE tried(` + nulls + `)`
	}
	if s.locks {
		text = s.text
	}
	_, err := conn.ExecContext(ctx, `BEGIN; SET LOCAL plan_cache_mode = force_generic_plan; `+text)
	_, rollback := conn.ExecContext(ctx, `ROLLBACK; DEALLOCATE ALL`)
	if err == nil {
		err = rollback
	}
	return err
}
