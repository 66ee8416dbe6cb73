"""Pictures of networks, schedules, programs and campaigns; in `tuner` matplotlib is imported here only."""
