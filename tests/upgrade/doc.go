// Package upgrade deploys a test migration and rolls the deployment back, with
// two builds of one service that differ by that migration.
package upgrade
