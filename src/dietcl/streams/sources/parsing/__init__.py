"""File formats that several readers share."""
