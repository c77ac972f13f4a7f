package examples

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
)

// The order service and its tests compile where they are copied: they use
// nothing that only this repository can import.
func TestOrdersCompilesWhereItIsCopied(t *testing.T) {
	kit.Long(t) // make test builds a copy in TestPartsOfOrdersCompileAlone
	t.Parallel()
	runGo(t, copied(t, "orders"), "vet", "./...")
}

// A reader can use one transport without the other one, and one database without the other one, by
// deleting files.
func TestPartsOfOrdersCompileAlone(t *testing.T) {
	t.Parallel()
	for part, others := range map[string][]string{
		"RabbitMQ":   {"service/transport_embedded*.go", "demo/wire_embedded*.go"},
		"embedded":   {"service/transport_rabbitmq*.go", "demo/wire_rabbitmq*.go"},
		"PostgreSQL": {"service/*_sqlite*"},
		"SQLite":     {"service/*_postgres*"},
	} {
		t.Run(part, func(t *testing.T) {
			if part != "RabbitMQ" {
				kit.Long(t)
			}
			t.Parallel()
			dir := copied(t, "orders")
			for _, pattern := range others {
				files, err := filepath.Glob(filepath.Join(dir, pattern))
				if err != nil || len(files) == 0 {
					t.Fatalf("%s: %d files, error %v", pattern, len(files), err)
				}
				for _, file := range files {
					kit.OK(t, os.Remove(file))
				}
			}
			runGo(t, dir, "build", "./service", "./demo")
		})
	}
}
