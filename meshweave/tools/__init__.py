"""Define the commands `meshweave-opt` (opt) and `meshweave` (cli). Nothing else imports this room."""
