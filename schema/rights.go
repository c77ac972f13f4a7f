package schema

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// ErrRights means that the database user lacks rights that it needs.
var ErrRights = errors.New("the database user lacks rights")

var (
	grant     = regexp.MustCompile(`(?s)\nGRANT ([^;]*?) ON ([^;]*?) TO ([^;]*?);`)
	privilege = regexp.MustCompile(`([A-Z]+)(?: \(([^)]*)\))?`)
)

type right struct {
	privilege string
	table     string // name of a table or a sequence, without the prefix
	columns   []string
	sequence  bool
}

func rightsOf(part string) (all []right) {
	for _, match := range grant.FindAllStringSubmatch(roles, -1) {
		if !strings.Contains(match[3], "{role "+part+"}") {
			continue
		}
		on, sequence := strings.CutPrefix(match[2], "SEQUENCE ")
		for _, table := range placeholder.FindAllStringSubmatch(on, -1) {
			for _, granted := range privilege.FindAllStringSubmatch(match[1], -1) {
				r := right{privilege: granted[1], table: table[2], sequence: sequence}
				if granted[2] != "" {
					r.columns = strings.Split(strings.Join(strings.Fields(granted[2]), ""), ",")
				}
				all = append(all, r)
			}
		}
	}
	return all
}

// CheckRights returns nil if the user of db has the rights that [Roles] grants to the
// given part of a service: "producer", "forwarder", "consumer", "operator" or
// "watcher". If tables is not empty, CheckRights checks only these tables; give their
// names without the prefix. If tables is empty, it checks all tables that this part
// needs. If rights are missing, the error names every missing right and wraps
// [ErrRights]. It can also return the database's own error. Call CheckRights after
// [Check], because it fails if a table is missing. For SQLite, which has no rights,
// CheckRights returns nil.
func CheckRights(ctx context.Context, db querier, config Config, part string, tables ...string) error {
	if err := config.validateWith(db); err != nil {
		return err
	}
	config = config.WithDefaults()
	if config.Dialect == SQLite {
		return nil
	}
	rights := rightsOf(part)
	if len(rights) == 0 {
		return fmt.Errorf("schema: there is no role %q", part)
	}
	var rows []string
	for _, r := range rights {
		if len(tables) == 0 || slices.Contains(tables, r.table) {
			rows = append(rows, config.rows(r, len(rows))...)
		}
	}
	if len(rows) == 0 {
		return nil
	}
	query := `SELECT current_user, coalesce((SELECT string_agg(what, ', ' ORDER BY n) FROM (
		SELECT what, min(n) AS n FROM (VALUES ` + strings.Join(rows, ", ") + `) AS rights (n, what, granted)
		WHERE NOT granted GROUP BY what) AS lacking), '')`
	var user, lacking string
	if err := db.QueryRowContext(ctx, query).Scan(&user, &lacking); err != nil {
		return fmt.Errorf("schema: check rights: %w", config.explain(ctx, db, err))
	}
	if lacking != "" {
		return fmt.Errorf("schema: %w: %q needs %s: grant it the role of a %s, see schema.Roles and docs/roles.md",
			ErrRights, user, lacking, part)
	}
	return nil
}

// rows returns SQL rows for the query of CheckRights: n, a text that names r, and an expression
// that is true if the user has r. A right that is granted by column has one row for each. The names
// were validated, so they contain no quotes.
func (c Config) rows(r right, n int) (rows []string) {
	what, table := r.privilege+" on "+strings.ReplaceAll(c.Table(r.table), `"`, ""), c.Table(r.table)
	row := func(granted string) string { return fmt.Sprintf(`(%d, '%s', %s)`, n, what, granted) }
	switch {
	case r.sequence:
		return []string{row(fmt.Sprintf(`has_sequence_privilege('%s', '%s')`, table, r.privilege))}
	case r.columns == nil:
		return []string{row(fmt.Sprintf(`has_table_privilege('%s', '%s')`, table, r.privilege))}
	}
	for _, column := range r.columns {
		rows = append(rows, row(fmt.Sprintf(`has_column_privilege('%s', '%s', '%s')`, table, column, r.privilege)))
	}
	return rows
}

//go:embed postgres/roles.sql
var roles string

const longestRole = "forwarder"

var rolePlaceholder = regexp.MustCompile(`\{role ([a-z]+)\}`)

// Roles returns the SQL that creates PostgreSQL roles for the parts of a service:
// producer, forwarder, consumer, operator and watcher. It grants each role only the
// rights that the part needs. The roles cannot log in; make your login roles members of
// these roles. docs/roles.md lists the rights.
//
// Run the SQL as the owner of the tables: after [Up] or [SQL], and again after every
// later migration. You may run it repeatedly. It revokes all other rights of the roles.
// The owner needs the right to create roles, unless the roles exist.
//
// prefix is the beginning of the names of the roles. It may contain
// letters, digits and underscores. All databases of a server share their roles, so
// services that do not trust each other need different prefixes. It defaults to the
// Prefix of config.
func Roles(config Config, prefix string) (string, error) {
	config = config.WithDefaults()
	prefix = cmp.Or(prefix, config.Prefix)
	errs := []error{config.Validate()}
	if config.Dialect == SQLite {
		errs = append(errs, errors.New("schema: SQLite has no roles"))
	}
	if !identifier.MatchString(prefix) {
		errs = append(errs, fmt.Errorf("schema: role prefix %q: only letters, digits and underscores, not starting with a digit", prefix))
	}
	if limit := maxIdentifier - len(longestRole); len(prefix) > limit {
		errs = append(errs, fmt.Errorf("schema: role prefix %q is longer than %d bytes: PostgreSQL would truncate role names at %d bytes",
			prefix, limit, maxIdentifier))
	}
	if err := errors.Join(errs...); err != nil {
		return "", err
	}
	return config.expand(rolePlaceholder.ReplaceAllString(roles, `"`+prefix+`${1}"`)), nil
}
