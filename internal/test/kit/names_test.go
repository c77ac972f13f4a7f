package kit

import (
	"fmt"
	"testing"
	"time"
)

func TestStaleRecognisesOldNames(t *testing.T) {
	old := time.Now().Add(-3 * time.Hour).Unix()
	for name, want := range map[string]bool{
		uniqueName("once_test", "_"):          false,
		fmt.Sprintf("once_test_%d_1_1", old):  true,
		fmt.Sprintf("once_other_%d_1_1", old): false,
		"once_test_nonsense_1_1":              false,
		"once_test":                           false,
		"postgres":                            false,
	} {
		if got := stale(name, "once_test", "_"); got != want {
			t.Errorf("%s: stale is %v", name, got)
		}
	}
}

func TestWithDatabaseReplacesDatabaseOfDSN(t *testing.T) {
	for dsn, want := range map[string]string{
		"postgres://u:p@h:1/old?sslmode=disable": "postgres://u:p@h:1/new?sslmode=disable",
		"postgresql://h":                         "postgresql://h/new",
		"host=h dbname=old":                      "host=h dbname=old dbname=new",
	} {
		if got := withDatabase(dsn, "new"); got != want {
			t.Errorf("%s: got %s, want %s", dsn, got, want)
		}
	}
}

func TestWithVHostReplacesVirtualHostOfURL(t *testing.T) {
	for address, want := range map[string]string{
		"amqp://u:p@h:1/":             "amqp://u:p@h:1/new",
		"amqps://h/%2F?heartbeat=10":  "amqps://h/new?heartbeat=10",
		"amqp://u:p@h/some%2Fnesting": "amqp://u:p@h/new",
	} {
		if got := withVHost(address, "new"); got != want {
			t.Errorf("%s: got %s, want %s", address, got, want)
		}
	}
}
