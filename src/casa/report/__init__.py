"""What a person reads: tables, figures, reports."""
