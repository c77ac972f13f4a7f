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

// longestRole is the longest of the names that stand behind a prefix.
const longestRole = "forwarder"

var rolePlaceholder = regexp.MustCompile(`\{role ([a-z]+)\}`)

// Roles returns the SQL that creates roles of PostgreSQL for the parts of a
// service and grants each what its work needs and no more: producer, forwarder,
// consumer, operator and watcher. They cannot log in; logins are made members
// of them. docs/roles.md says who may what.
//
// It is for the owner of the tables to run, after [Up] or [SQL] and again after
// every later migration. It can be repeated, and takes back what it does not
// grant. Who runs it must be allowed to create roles, unless they are there.
//
// prefix stands before the names of the roles. All databases of a server have
// the same roles, so services that do not trust each other need different ones.
// Letters, digits and underscores. Defaults to config's Prefix.
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
	if most := maxIdentifier - len(longestRole); len(prefix) > most {
		errs = append(errs, fmt.Errorf("schema: role prefix %q is longer than %d bytes: names would be cut at %d",
			prefix, most, maxIdentifier))
	}
	if err := errors.Join(errs...); err != nil {
		return "", err
	}
	return config.expand(rolePlaceholder.ReplaceAllString(roles, `"`+prefix+`${1}"`)), nil
}
