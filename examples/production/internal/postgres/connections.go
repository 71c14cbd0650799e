package postgres

// Connections returns how many connections are in use, and the maximum. Queries
// wait while the two are equal.
func (d *Database) Connections() (used, most int32) {
	now := d.pool.Stat()
	return now.AcquiredConns(), now.MaxConns()
}
