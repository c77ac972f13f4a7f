// Command service is the program that the test of upgrades builds, with migrations that no release
// has. It runs one command on the database and ends:
//
//	service postgres|sqlite DSN up|check|work|sql-from ARGUMENT
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	_ "github.com/lib/pq"
	_ "modernc.org/sqlite"

	"github.com/watermill-once/once/schema"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:gocritic // nothing is left that a context would end
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) != 4 {
		return errors.New("usage: service postgres|sqlite DSN up|check|work|sql-from ARGUMENT")
	}
	db, err := sql.Open(args[0], args[1])
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	config := schema.Config{Dialect: schema.Dialect(args[0])}
	switch n, _ := strconv.Atoi(args[3]); args[2] {
	case "up":
		return schema.Up(ctx, db, config)
	case "check":
		return schema.Check(ctx, db, config)
	case "sql-from":
		text, err := schema.SQLFrom(config, n)
		fmt.Print(text)
		return err
	case "work":
		return work(ctx, db, config, n)
	default:
		return fmt.Errorf("no such work: %s", args[2])
	}
}
