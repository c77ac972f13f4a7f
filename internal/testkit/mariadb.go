package testkit

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"testing"
)

// MariaDB returns a fake MariaDB database. It reports a version of MariaDB, and refuses
// every other statement, as MariaDB refuses the SQL of other databases. A test with a
// real MariaDB is in tests/databases.
func MariaDB(t testing.TB) *sql.DB {
	t.Helper()
	db := sql.OpenDB(mariadb{})
	t.Cleanup(func() { _ = db.Close() })
	return db
}

type mariadb struct{}

// errMariaDBSyntax has the text of the error of github.com/go-sql-driver/mysql.
var errMariaDBSyntax = errors.New(
	"Error 1064 (42000): You have an error in your SQL syntax; check the manual that corresponds to " +
		"your MariaDB server version for the right syntax to use near '$1' at line 1")

func (m mariadb) Connect(context.Context) (driver.Conn, error)                 { return m, nil }
func (m mariadb) Driver() driver.Driver                                        { return nil }
func (m mariadb) Prepare(string) (driver.Stmt, error)                          { return nil, errMariaDBSyntax }
func (m mariadb) Begin() (driver.Tx, error)                                    { return m, nil }
func (m mariadb) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return m, nil }
func (m mariadb) Commit() error                                                { return nil }
func (m mariadb) Rollback() error                                              { return nil }
func (m mariadb) Close() error                                                 { return nil }
func (m mariadb) ExecContext(context.Context, string, []driver.NamedValue) (driver.Result, error) {
	return nil, errMariaDBSyntax
}

func (m mariadb) QueryContext(_ context.Context, query string, _ []driver.NamedValue) (driver.Rows, error) {
	if query != "SELECT version()" {
		return nil, errMariaDBSyntax
	}
	return &mariadbVersion{}, nil
}

type mariadbVersion struct{ read bool }

func (v *mariadbVersion) Columns() []string { return []string{"version()"} }
func (v *mariadbVersion) Close() error      { return nil }

func (v *mariadbVersion) Next(to []driver.Value) error {
	if v.read {
		return io.EOF
	}
	to[0], v.read = "10.11.19-MariaDB-0+deb12u1", true
	return nil
}
