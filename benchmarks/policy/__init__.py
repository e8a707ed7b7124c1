"""What the policies are worth, in virtual time: the table of targets, and what each rule of ours brings."""
