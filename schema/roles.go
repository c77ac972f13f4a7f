package schema

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"regexp"
)

//go:embed postgres/roles.sql
var roles string

// longestRole is the longest name of a role without its prefix.
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
// The parameter prefix is the beginning of the names of the roles. It may contain
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
