package dialect

import (
	"database/sql"
	"reflect"
	"strings"
)

// Prepares reports whether tx belongs to pgx, which keeps statements with arguments
// prepared. It returns false for other drivers, and for pgx behind a wrapper. It reads
// private fields of tx, because a transaction has no method that returns its driver. If
// a new version of Go has different fields, Prepares returns false.
func Prepares(tx *sql.Tx) bool {
	field := reflect.ValueOf(tx).Elem()
	for _, step := range [...]struct {
		name string
		kind reflect.Kind
	}{{"dc", reflect.Pointer}, {"ci", reflect.Interface}} {
		if field = field.FieldByName(step.name); !field.IsValid() || field.Kind() != step.kind || field.IsNil() {
			return false
		}
		field = field.Elem()
	}
	conn := field.Type()
	return conn.Kind() == reflect.Pointer && strings.HasPrefix(conn.Elem().PkgPath(), "github.com/jackc/pgx/")
}
