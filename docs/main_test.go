package docs

import (
	"log"
	"os"
	"testing"
)

// The tests read pages and files of tests. Their paths begin at the root of the repository.
func TestMain(m *testing.M) {
	if err := os.Chdir(".."); err != nil {
		log.Fatal(err)
	}
	os.Exit(m.Run())
}
