// Package upgrade deploys a migration that is made for the test, and takes the
// deployment back: with builds of one service that differ by that migration.
package upgrade
